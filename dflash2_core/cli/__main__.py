"""`python -m dflash2_core.cli` is the command `dflash2`."""

from dflash2_core.cli import main

main()
