"""llama-server's /metrics -> AcceptanceStats."""

import re

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.errors import EngineError

PREFIX = "llamacpp:spec_decode_num_"
POSITION = re.compile(rf'^{PREFIX}accepted_tokens_per_pos_total{{position="(\d+)"}} (\S+)$', re.MULTILINE)


def acceptance(metrics: str) -> AcceptanceStats:
    """Of the text of /metrics, over every request since the start.

    An end of sequence that was drafted counts as the target's own token; where a stop string ends a text, drafts behind it
    count as accepted and committed. `num_cut`, `drafted_per_position` and passes without drafts are not told.
    """
    drafted, accepted, cycles = (_counter(metrics, name) for name in ("draft_tokens", "accepted_tokens", "drafts"))
    by_position = {int(position): int(float(count)) for position, count in POSITION.findall(metrics)}
    return AcceptanceStats(
        num_cycles=cycles,
        num_drafted=drafted,
        num_accepted=accepted,
        num_committed=accepted + cycles,
        accepted_per_position=[by_position[position] for position in sorted(by_position)],
    )


def _counter(metrics: str, name: str) -> int:
    found = re.search(rf"^{PREFIX}{name}_total (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise EngineError(f"this llama-server's /metrics does not count {PREFIX}{name}_total: it is too old to tell acceptance")
    return int(float(found[1]))
