"""The counters of speculative decoding that engines tell in Prometheus' text format -> AcceptanceStats."""

import re

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.errors import EngineError

LABELS = r"(?:\{[^}]*\})?"


def counted(metrics: str, prefix: str, *, name: str) -> AcceptanceStats:
    """Of the text of /metrics, over every request since the start, summed over an engine's processes.

    prefix  of the counters `draft_tokens_total`, `accepted_tokens_total`, `drafts_total` and `accepted_tokens_per_pos_total`
    name    the engine's, for EngineError where a counter is missing
    Drafts that an engine kept behind the end of a text count as accepted and committed. `num_cut`, `drafted_per_position` and
    passes without drafts are not told.
    """
    drafted, accepted, cycles = (
        _sum(metrics, f"{prefix}{each}_total", name) for each in ("draft_tokens", "accepted_tokens", "drafts")
    )
    by_position: dict[int, int] = {}
    pattern = rf'^{prefix}accepted_tokens_per_pos_total\{{[^}}]*?position="(\d+)"[^}}]*\}} (\S+)$'
    for position, count in re.findall(pattern, metrics, re.MULTILINE):
        by_position[int(position)] = by_position.get(int(position), 0) + int(float(count))
    return AcceptanceStats(
        num_cycles=cycles,
        num_drafted=drafted,
        num_accepted=accepted,
        num_committed=accepted + cycles,
        accepted_per_position=[by_position[position] for position in sorted(by_position)],
    )


def _sum(metrics: str, counter: str, name: str) -> int:
    found = re.findall(rf"^{counter}{LABELS} (\S+)$", metrics, re.MULTILINE)
    if not found:
        raise EngineError(
            f"{name}'s /metrics does not count {counter}: this server does not draft, or is too old to tell acceptance"
        )
    return int(sum(map(float, found)))
