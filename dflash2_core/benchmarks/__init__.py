"""How much a drafter gains in an engine: both sides asked in turn, the same prompts, and what came of it as charts.

machine.py    what it ran on                   comparing.py  two sides, round by round
benching.py   one engine after the other       charts.py     what was found -> drawings
drawing.py    a drawing -> SVG, PNG            page.py       one HTML file

`dflash2 bench` is one caller, the repository's own `bench/` another.
"""

from dflash2_core.benchmarks.comparing import Batch, compare

__all__ = ["Batch", "compare"]
