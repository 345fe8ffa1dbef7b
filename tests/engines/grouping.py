"""Two processes of pytest for an engine's tests (`-n 2`), so that a server which many files ask is started once.

xdist has groups of its own for that, by a mark; with pytest 9.2 its 3.8.0 does not see them.
"""

from collections.abc import Set
from typing import Any

from xdist.scheduler import LoadFileScheduling


class Together(LoadFileScheduling):  # type: ignore[misc]
    """The tests of a file go to one process, those of these files to the same one."""

    def __init__(self, config: Any, log: Any, files: Set[str]) -> None:
        super().__init__(config, log)
        self._files = files

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "together" if file.rpartition("/")[2] in self._files and "/examples/" not in file else file
