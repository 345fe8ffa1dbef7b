"""With a drafter the ids are those of plain SGLang and of the Transformers engine; drafts were made and kept."""

from functools import cache

import pytest

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.assets import tiny_pair
from dflash2_sglang.server import SglangServer
from tests.engines.pair import NEW_TOKENS, drafts_at, thirty_prompts, written_plainly
from tests.sglang.asking import Answer, ask, assert_drafted, assert_plain, endings, ids
from tests.sglang.conftest import Told

BLOCK = 8


def assert_identical(answers: list[Answer], plain: list[Answer]) -> None:
    assert ids(answers) == ids(plain) == [completion.token_ids for completion in written_plainly()]
    assert endings(answers) == endings(plain)
    assert_drafted(answers)


def test_plain_sglang_writes_what_the_transformers_engine_writes(plain: Told) -> None:
    assert ids(plain.cases["greedy"]) == [completion.token_ids for completion in written_plainly()]
    assert_plain(plain.cases["greedy"])


def assert_runs(server: SglangServer, *, algorithm: str, overlap: bool, page_size: int) -> None:
    """By what SGLang itself says; it changes such options where it finds that they do not go together."""
    told = server.ask("/server_info")
    assert told["speculative_algorithm"] == algorithm
    assert told["disable_overlap_schedule"] is not overlap
    assert told["page_size"] == page_size


def test_dflash_changes_no_id_with_overlap_and_pages_of_one_slot(overlapped: SglangServer, drafted: Told, plain: Told) -> None:
    assert_runs(overlapped, algorithm="DFLASH", overlap=True, page_size=1)
    assert_identical(drafted.cases["greedy"], plain.cases["greedy"])


def test_dflash2_changes_no_id_without_overlap_and_with_pages_of_sixteen(paged: SglangServer, plain: Told) -> None:
    assert_runs(paged, algorithm="DFLASH2", overlap=False, page_size=16)
    assert_identical(ask(paged, thirty_prompts(), {}), plain.cases["greedy"])


@cache
def cores_histograms() -> list[list[int]]:
    """Of each prompt: how many cycles kept 0, 1, .. drafts, by the core's drafts along the core's text. Counted as SGLang
    does: the last cycle counts what lies behind the end too."""
    engine = TransformersEngine.from_pretrained(tiny_pair().target, dtype="float32", max_batch_size=10)
    beyond = engine.generate(thirty_prompts(), SamplingParams(max_new_tokens=NEW_TOKENS + BLOCK, ignore_eos=True))
    found = []
    for prompt, text, stopped in zip(thirty_prompts(), beyond, written_plainly(), strict=True):
        whole = [*prompt, *text.token_ids]
        end = len(prompt) + len(stopped.token_ids)  # positions before it are written
        anchors = range(len(prompt), end)
        drafts = dict(zip(anchors, drafts_at(whole, anchors), strict=True))
        histogram, anchor = [0] * BLOCK, len(prompt)
        while anchor < end - 1:
            wanted = whole[anchor + 1 : anchor + BLOCK]
            kept = next((i for i, (a, b) in enumerate(zip(drafts[anchor], wanted, strict=True)) if a != b), BLOCK - 1)
            histogram[kept] += 1
            anchor += kept + 1
        found.append(histogram)
    return found


@pytest.mark.parametrize("name", ["greedy", "top_k 1 at temperature 1"])
def test_every_prompt_keeps_drafts_as_often_as_by_the_cores_own(name: str, drafted: Told) -> None:
    told = [answer["meta_info"].get("spec_correct_drafts_histogram", []) for answer in drafted.cases[name]]
    expected = cores_histograms() if name == "greedy" else cores_histograms()[::2]
    assert [histogram + [0] * (BLOCK - len(histogram)) for histogram in told] == expected


def test_sglangs_own_figures_agree_with_what_was_drafted_and_accepted(drafted: Told) -> None:
    for answer in drafted.cases["greedy"]:
        meta = answer["meta_info"]
        if "spec_verify_ct" not in meta:
            continue
        cycles, accepted = meta["spec_verify_ct"], meta["spec_num_correct_drafts"]
        histogram = meta["spec_correct_drafts_histogram"]
        assert sum(histogram) == cycles
        assert sum(kept * count for kept, count in enumerate(histogram)) == accepted
        assert meta["spec_num_proposed_drafts"] == cycles * (BLOCK - 1)
        assert meta["spec_accept_length"] == pytest.approx(meta["completion_tokens"] / cycles)
        assert meta["spec_accept_rate"] == pytest.approx(accepted / meta["spec_num_proposed_drafts"])
        # One token was there before the first cycle; those behind the end are not among the completion's.
        assert 0 <= accepted + cycles + 1 - meta["completion_tokens"] < BLOCK
