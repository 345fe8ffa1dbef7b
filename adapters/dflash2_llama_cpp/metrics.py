"""llama-server's /metrics -> AcceptanceStats."""

import re

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.errors import EngineError

PREFIX = "llamacpp:spec_decode_num_"
POSITION = re.compile(rf'^{PREFIX}accepted_tokens_per_pos_total{{position="(\d+)"}} (\S+)$', re.MULTILINE)


def acceptance(metrics: str) -> AcceptanceStats:
    """Of the text of /metrics, over every request since the start.

    llama.cpp counts a draft as accepted when the target agrees, also where the text ends before it: `num_cut` is 0 and
    `num_committed` includes those. It tells no `drafted_per_position`, and no passes without drafts.
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
