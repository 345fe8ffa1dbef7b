"""Above temperature 0 every emitted token is held against the target's own law, which the core computes by itself."""

from collections.abc import Sequence

import pytest

from dflash2_core.conformance import LawReport, Written, check_law
from dflash2_core.sampling import SamplingParams
from tests.engines.pair import target
from tests.vllm.conftest import fault
from tests.vllm.engines import Ran, VllmProcess

SETTINGS = ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9})
ALPHA = 1e-6


def written(
    engine: VllmProcess, prompts: Sequence[list[int]], new_tokens: int, rounds: int, *, past_the_end: bool = True
) -> tuple[list[Written], Ran]:
    """Both settings in the same batches, no seeds; the counts are those of all rounds."""
    requests = [
        {"prompt": prompt, "max_tokens": new_tokens, "ignore_eos": past_the_end, **setting}
        for prompt in prompts
        for setting in SETTINGS
        for _ in range(rounds)
    ]
    ran = engine.run(requests)
    texts = [
        Written(
            prompt=request["prompt"],
            token_ids=ids,
            params=SamplingParams(**{name: request[name] for name in ("temperature", "top_p") if name in request}),
        )
        for request, ids in zip(requests, ran.ids, strict=True)
    ]
    return texts, ran


def law_of(texts: list[Written]) -> LawReport:
    report = check_law(target(), texts, alpha=ALPHA)
    print(report)
    return report


def test_twenty_thousand_tokens_are_the_targets_own(drafted: VllmProcess, prompts: list[list[int]]) -> None:
    """Error rate 1e-6; the smallest deviation that it would find is printed with it."""
    texts, ran = written(drafted, prompts[:20], 180, 3)
    report = law_of(texts)
    assert report.num_tokens >= 20_000
    assert report.lossless, str(report)
    assert report.smallest_tempering < 1.1
    assert ran.acceptance_length > 1.8, ran.acceptance_length


@pytest.mark.parametrize("mutant", ["expand_left_in", "argmax_with_softmax_q"])
def test_a_fault_is_found_with_fewer(mutant: str, drafted: VllmProcess, prompts: list[list[int]]) -> None:
    with fault(drafted, mutant):
        texts, ran = written(drafted, prompts[:20], 100, 1)
    assert ran.draft_tokens > 1000
    assert not law_of(texts).lossless


def test_greedy_and_sampled_rows_mix(drafted: VllmProcess, prompts: list[list[int]], by_plain_vllm: Ran) -> None:
    requests = [
        {"prompt": prompt, "max_tokens": 64, **({"temperature": 1.0, "seed": 3} if i % 2 else {"temperature": 0})}
        for i, prompt in enumerate(prompts)
    ]
    ran = drafted.run(requests)
    assert ran.ids[::2] == by_plain_vllm.ids[::2]
    assert ran.accepted_tokens > 0


def test_a_seeds_drafts_and_text_depend_on_nothing_else(drafted: VllmProcess, prompts: list[list[int]]) -> None:
    asked = [{"prompt": prompt, "max_tokens": 48, "temperature": 1.0, "seed": 7} for prompt in prompts[:4]]
    others = [{"prompt": prompt, "max_tokens": 30, "temperature": 1.0} for prompt in prompts[5:15]]
    alone = [drafted.run([request]) for request in asked]
    beside = drafted.run([*others, *asked])
    assert beside.ids[len(others) :] == [ran.ids[0] for ran in alone]
    assert beside.proposals[len(others) :] == [ran.proposals[0] for ran in alone]
    assert sum(ran.accepted_tokens for ran in alone) > 0
    other = drafted.run([request | {"seed": 8} for request in asked])
    assert all(a != b for a, b in zip(other.ids, beside.ids[len(others) :], strict=True))


def test_a_seeds_text_is_the_same_whenever_it_joins_the_others(drafted: VllmProcess, prompts: list[list[int]]) -> None:
    """A prompt of one id, one of which all but one id is cached, one of a few: vLLM would pad the first two with drafts."""
    assert (len(prompts[0]), len(prompts[20]), len(prompts[1])) == (1, 33, 4)
    other = {"prompt": prompts[5], "max_tokens": 48, "temperature": 0}
    for prompt in (prompts[0], prompts[20], prompts[1]):
        seeded = {"prompt": prompt, "max_tokens": 24, "temperature": 1.0, "seed": 7}
        alone = drafted.run([seeded])
        for step in (0, 1, 2, 5):
            joined = drafted.run([other, seeded | {"joins": step}])
            assert joined.ids[1] == alone.ids[0], (len(prompt), step)
            assert joined.proposals[1] == alone.proposals[0]


def test_who_joins_has_the_targets_own_law_and_the_others_keep_theirs(drafted: VllmProcess, prompts: list[list[int]]) -> None:
    """Every step somebody joins whose prompt has one id to compute."""
    sampled = {"temperature": 1.0, "ignore_eos": True}
    requests = [{"prompt": prompts[i], "max_tokens": 150, **sampled} for i in range(1, 9)]
    requests += [{"prompt": prompts[10 * (i % 2)][:1], "max_tokens": 20, "joins": i, **sampled} for i in range(200)]
    said = len(drafted.log.read_text())
    ran = drafted.run(requests)
    params = SamplingParams(temperature=1.0)
    texts = [
        Written(prompt=request["prompt"], token_ids=ids, params=params) for request, ids in zip(requests, ran.ids, strict=True)
    ]
    assert law_of(texts).lossless
    assert "Missing cached draft probabilities" not in drafted.log.read_text()[said:]


def test_a_seeds_text_is_the_same_where_its_prompt_comes_in_parts(
    drafted: VllmProcess, tight: VllmProcess, prompts: list[list[int]]
) -> None:
    """At once and in chunks of 34, alone: vLLM for a CPU ends there, since it cannot turn back the seed's generator."""
    seeded = [{"prompt": prompt, "max_tokens": 24, "temperature": 1.0, "seed": 7} for prompt in prompts if len(prompt) > 100]
    assert len(seeded) >= 3
    for request in seeded:
        at_once, in_parts = drafted.run([request]), tight.run([request])
        assert in_parts.steps > at_once.steps
        assert in_parts.ids == at_once.ids
        assert in_parts.accepted_tokens > 0
