"""`meta_info` of SGLang's answers -> AcceptanceStats."""

from collections.abc import Mapping
from typing import Any

from dflash2_core.acceptance import AcceptanceStats


def acceptance(meta: Mapping[str, Any]) -> AcceptanceStats:
    """Of one request; empty where nothing was drafted.

    From `spec_verify_ct`, `spec_num_proposed_drafts` and `spec_correct_drafts_histogram` (entry i: cycles that kept i drafts).
    Drafts behind an end, a stop or the budget count as accepted: SGLang counts as verified. Its own `spec_accept_length` is
    completion tokens by cycles and so counts the first token, which no cycle made.
    """
    cycles = int(meta.get("spec_verify_ct") or 0)
    if not cycles:
        return AcceptanceStats()
    kept = [int(count) for count in meta["spec_correct_drafts_histogram"]]
    drafts = int(meta["spec_num_proposed_drafts"]) // cycles
    kept += [0] * (drafts + 1 - len(kept))
    accepted = sum(length * count for length, count in enumerate(kept))
    return AcceptanceStats(
        num_cycles=cycles,
        num_drafted=drafts * cycles,
        num_accepted=accepted,
        num_committed=accepted + cycles,
        accepted_per_position=[sum(kept[position + 1 :]) for position in range(drafts)],
        drafted_per_position=[cycles] * drafts,
    )
