"""The command `dflash2`: one module a command, and the one place where errors become a sentence and an exit code.

Exit codes: 0 done, 1 a finding, 2 could not run.
"""

import os
import sys

import typer

from dflash2_core.cli.generate import generate
from dflash2_core.cli.inspect import inspect
from dflash2_core.cli.train import train
from dflash2_core.errors import Dflash2Error

app = typer.Typer(
    name="dflash2",
    help="DFlash 2 speculative decoding: the target's own text, in far fewer of its passes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(generate)
app.command()(inspect)
app.command()(train)


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are local folders; nothing here reaches for a hub
    try:
        app(prog_name="dflash2")
    except Dflash2Error as error:
        sys.exit(_could_not_run(str(error)))
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        sys.exit(_could_not_run(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)


def _could_not_run(sentence: str) -> int:
    print(f"dflash2: {sentence}", file=sys.stderr)
    return 2
