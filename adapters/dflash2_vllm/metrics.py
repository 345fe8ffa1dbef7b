"""vLLM's /metrics -> AcceptanceStats."""

import re

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.errors import EngineError

PREFIX = "vllm:spec_decode_num_"
POSITION = re.compile(rf'^{PREFIX}accepted_tokens_per_pos_total\{{[^}}]*position="(\d+)"[^}}]*\}} (\S+)$', re.MULTILINE)


def acceptance(metrics: str) -> AcceptanceStats:
    """Of the text of /metrics, over every request since the start.

    Where an end of sequence, a stop or the budget ends a text within an accepted run, drafts behind it count as accepted and
    committed. `num_cut`, `drafted_per_position` and passes without drafts are not told.
    """
    drafted, accepted, cycles = (_counter(metrics, name) for name in ("draft_tokens", "accepted_tokens", "drafts"))
    by_position: dict[int, int] = {}
    for position, count in POSITION.findall(metrics):
        by_position[int(position)] = by_position.get(int(position), 0) + int(float(count))
    return AcceptanceStats(
        num_cycles=cycles,
        num_drafted=drafted,
        num_accepted=accepted,
        num_committed=accepted + cycles,
        accepted_per_position=[by_position[position] for position in sorted(by_position)],
    )


def _counter(metrics: str, name: str) -> int:
    """The sum over vLLM's engines."""
    found = re.findall(rf"^{PREFIX}{name}_total\{{[^}}]*\}} (\S+)$", metrics, re.MULTILINE)
    if not found:
        raise EngineError(f"vLLM's /metrics does not count {PREFIX}{name}_total: this server does not draft, or is too old")
    return int(sum(map(float, found)))
