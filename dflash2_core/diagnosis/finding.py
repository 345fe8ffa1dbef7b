"""What a look at engines and a pair found."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
"""error: it will not run, or its output or its drafts are not what they should be. warning: it runs worse than it could, or may
not be used as one thinks. note: worth knowing."""
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """subject: what it is about, in a word or two; reason and mend: a clause each, the mend as something to do."""

    level: Level
    subject: str
    reason: str
    mend: str

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)


def by_level(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, else in the order in which they came; none twice."""
    return sorted(dict.fromkeys(findings), key=lambda finding: LEVELS.index(finding.level))
