"""Two processes of pytest for an engine's tests, each with servers of its own: `-n 2 --dist loadgroup`."""

from collections.abc import Set
from pathlib import Path

import pytest


def group(items: list[pytest.Item], folder: Path, beside: Set[str]) -> None:
    """Of the tests in `folder`, those that ask a server of these fixtures' names go to one process, all others to the other."""
    for item in (each for each in items if folder in each.path.parents):
        together = beside & set(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("beside" if together else "apart"))
