"""Greedy texts are those of plain vLLM and of the Transformers engine, id by id; drafts are the core's, block by block."""

import pytest

from dflash2_core.drafter import Drafter
from tests.engines.pair import drafts_at, written_plainly, written_with_drafts
from tests.vllm.conftest import fault
from tests.vllm.engines import NEW_TOKENS, Ran, VllmProcess

Ids = list[list[int]]
GREEDY = {"temperature": 0, "max_tokens": NEW_TOKENS}


def require_drafting(ran: Ran, *, drafts: int = 100, length: float = 1.5) -> None:
    """That nothing was shown by not drafting."""
    assert ran.drafts >= drafts
    assert ran.draft_tokens <= 7 * ran.drafts
    assert 0 < ran.accepted_tokens < ran.draft_tokens
    assert ran.acceptance_length > length


def differing_blocks(ran: Ran, prompts: Ids, *, of: Drafter | None = None) -> tuple[int, int]:
    """Blocks compared with the core's, and how many of them differ. of: the drafter, None for the embedded one."""
    compared = differing = 0
    for prompt, ids, proposals in zip(prompts, ran.ids, ran.proposals, strict=True):
        text = [*prompt, *ids]
        anchors = [at for at in sorted(proposals) if len(prompt) <= at < len(text)]
        for at, drafts in zip(anchors, drafts_at(text, anchors, of=of), strict=True):
            assert len(proposals[at]) == 7
            compared += 1
            differing += proposals[at] != drafts
    return compared, differing


@pytest.fixture(scope="module")
def by_drafted(drafted: VllmProcess, prompts: Ids) -> Ran:
    return drafted.generate(prompts, **GREEDY)


def test_thirty_texts_are_those_of_plain_vllm_and_of_transformers(by_drafted: Ran, by_plain_vllm: Ran, prompts: Ids) -> None:
    assert by_drafted.ids == by_plain_vllm.ids
    assert by_drafted.ids == [completion.token_ids for completion in written_plainly()]
    require_drafting(by_drafted)
    assert by_drafted.most_rows == 17
    assert by_plain_vllm.drafts == 0


def test_every_block_of_drafts_is_the_cores(by_drafted: Ran, prompts: Ids) -> None:
    compared, differing = differing_blocks(by_drafted, prompts)
    assert compared > 400
    assert differing == 0


def test_acceptance_is_the_cores(by_drafted: Ran) -> None:
    """But for the end of a text, where the core shortens its block."""
    core = [completion.stats for completion in written_with_drafts()]
    length = sum(stats.num_committed for stats in core) / sum(stats.num_cycles for stats in core)
    assert by_drafted.acceptance_length == pytest.approx(length, rel=0.05)


def test_the_engines_k_norm_fault_would_show_in_the_drafts(drafted: VllmProcess, prompts: Ids, by_plain_vllm: Ran) -> None:
    drafted.ask("reset_prefix_cache")
    with fault(drafted, "norms_left_in"):
        ran = drafted.generate(prompts[:8], **GREEDY)
    drafted.ask("reset_prefix_cache")
    assert ran.ids == by_plain_vllm.ids[:8]
    compared, differing = differing_blocks(ran, prompts[:8])
    assert differing > compared / 10


@pytest.mark.parametrize("batch", [1, 8])
def test_texts_do_not_depend_on_the_batch(batch: int, drafted: VllmProcess, prompts: Ids, by_plain_vllm: Ran) -> None:
    """The thirty at once were seventeen at a time."""
    some = prompts[:4] if batch == 1 else prompts
    ran = [drafted.generate(some[at : at + batch], **GREEDY) for at in range(0, len(some), batch)]
    assert [ids for part in ran for ids in part.ids] == by_plain_vllm.ids[: len(some)]
    assert {part.most_rows for part in ran[:3]} == {batch}
    assert sum(part.accepted_tokens for part in ran) > 0


def test_prefix_hits_change_neither_texts_nor_drafts(drafted: VllmProcess, prompts: Ids, by_plain_vllm: Ran) -> None:
    long = [prompt for prompt in prompts if len(prompt) > 100]
    ids = [ids for prompt, ids in zip(prompts, by_plain_vllm.ids, strict=True) if len(prompt) > 100]
    drafted.ask("reset_prefix_cache")
    cold, warm = drafted.generate(long, **GREEDY), drafted.generate(long, **GREEDY)
    assert [output["num_cached"] for output in cold.outputs if output] == [0] * len(long)
    assert all(output["num_cached"] >= 64 for output in warm.outputs if output)
    assert cold.ids == warm.ids == ids
    assert warm.proposals == cold.proposals
    require_drafting(warm, drafts=20)


def test_prompts_that_begin_alike_share_blocks_and_keep_their_texts(
    drafted: VllmProcess, prompts: Ids, plain: VllmProcess
) -> None:
    longest = max(prompts, key=len)
    alike = [longest[: 96 + i] for i in range(6)]
    ran = drafted.generate(alike, **GREEDY)
    assert ran.ids == plain.generate(alike, **GREEDY).ids
    assert sum(output["num_cached"] for output in ran.outputs if output) >= 64
    require_drafting(ran, drafts=30)


def test_chunks_of_prompts_and_preemptions_change_no_text(tight: VllmProcess, prompts: Ids, by_plain_vllm: Ran) -> None:
    assert sum(len(prompt) > 41 for prompt in prompts) > 3
    ran = tight.generate(prompts, **GREEDY)
    assert ran.ids == by_plain_vllm.ids
    assert ran.preemptions > 0
    require_drafting(ran)
    compared, differing = differing_blocks(ran, prompts)
    assert compared > 400
    assert differing == 0


def test_aborted_requests_leave_the_others_as_they_were(drafted: VllmProcess, prompts: Ids, by_plain_vllm: Ran) -> None:
    gone = {0: 1, 3: 2, 7: 3, 11: 5, 14: 9, 25: 24}
    ran = drafted.generate(prompts, abort=gone, **GREEDY)
    assert [i for i, output in enumerate(ran.outputs) if output is None] == list(gone)
    kept = [i for i in range(len(prompts)) if i not in gone]
    assert [ran.ids[i] for i in kept] == [by_plain_vllm.ids[i] for i in kept]
    require_drafting(ran)
    compared, differing = differing_blocks(ran, prompts)
    assert compared > 300
    assert differing == 0
