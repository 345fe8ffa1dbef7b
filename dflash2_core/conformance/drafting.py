"""Did drafts really speed these texts up, and can the engine's own counters be true?

Counters are compared with what nobody can dispute: how many ids came back. Each pass of the target commits what it accepted
and one token of its own, so that passes, accepted drafts and ids hang together.
"""

from collections.abc import Sequence

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engines import Generated

AGREES_WITHIN = 0.1
"""Of the core's mean acceptance length, on the same greedy texts with the same drafter."""


def findings(stats: AcceptanceStats, answers: Sequence[Generated], num_drafts: int) -> list[str]:
    """What speaks against the drafting of these answers, as sentences. num_drafts: of a full block."""
    tokens = sum(len(answer.token_ids) for answer in answers)
    after_first = sum(max(0, len(answer.token_ids) - 1) for answer in answers)
    found = []
    if not stats.num_drafted:
        return [f"nothing was drafted for {tokens} tokens: the drafter is off"]
    if not stats.num_accepted:
        found.append(f"{stats.num_drafted} drafts were made and none was accepted: the drafter does not fit, or runs wrongly")
    if stats.num_accepted > stats.num_drafted:
        found.append(f"{stats.num_accepted} drafts were accepted and only {stats.num_drafted} made: the counters are not true")
    if stats.num_drafted > num_drafts * stats.num_cycles:
        found.append(
            f"{stats.num_drafted} drafts in {stats.num_cycles} cycles are more than the {num_drafts} of a block: "
            "the counters are not true"
        )
    # A text's last cycle may verify more than it commits; every other one commits all that it accepts and one token more.
    least = stats.num_cycles + stats.num_accepted - len(answers) * (num_drafts + 1)
    most = stats.num_cycles + stats.num_accepted + stats.skipped.total()
    if least > after_first or (stats.skipped and most < after_first - len(answers) * (num_drafts + 1)):
        found.append(
            f"{stats.num_cycles} cycles that accepted {stats.num_accepted} drafts do not make {tokens} tokens: "
            "the counters are not true"
        )
    positions = stats.accepted_per_position
    if positions and (sum(positions) != stats.num_accepted or sorted(positions, reverse=True) != positions):
        found.append(f"{positions} accepted by position do not make {stats.num_accepted}: the counters are not true")
    return found


def compared(stats: AcceptanceStats, of_core: AcceptanceStats) -> list[str]:
    """What tells an engine's acceptance from the core's, on the same greedy texts."""
    own, core = stats.mean_acceptance_length, of_core.mean_acceptance_length
    if abs(own - core) <= AGREES_WITHIN * core:
        return []
    why = "its drafter is not used as it was trained" if own < core else "its counters are not true"
    return [f"the mean acceptance length is {own:.2f} and the core's with the same drafter {core:.2f}: {why}"]
