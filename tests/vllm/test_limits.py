"""A request that runs into the limit of positions: its text is plain vLLM's to the end, the others' drafts stay as good."""

import pytest

from tests.vllm.conftest import fault
from tests.vllm.engines import LIMIT, Ran, VllmProcess
from tests.vllm.test_greedy import differing_blocks

OTHERS = 200


@pytest.fixture(scope="module")
def requests(prompts: list[list[int]]) -> list[dict[str, object]]:
    """The first begins near the limit, and is there while the others have most of their texts to write."""
    longest = max(prompts, key=len)
    near = (longest * 2)[: LIMIT - 40]
    others = [{"prompt": prompt, "temperature": 0, "max_tokens": OTHERS, "ignore_eos": True} for prompt in prompts[2:8]]
    return [{"prompt": near, "temperature": 0, "max_tokens": 400, "ignore_eos": True}, *others]


@pytest.fixture(scope="module")
def ran(drafted: VllmProcess, requests: list[dict[str, object]]) -> Ran:
    drafted.ask("reset_prefix_cache")
    return drafted.run(requests)


def test_texts_are_those_of_plain_vllm(ran: Ran, requests: list[dict[str, object]], plain: VllmProcess) -> None:
    assert ran.ids == plain.run(requests).ids
    assert len(requests[0]["prompt"]) + len(ran.ids[0]) == LIMIT  # type: ignore[arg-type]
    assert ran.accepted_tokens > 0


def test_the_others_drafts_are_the_cores_before_and_after(ran: Ran, requests: list[dict[str, object]]) -> None:
    compared, differing = differing_blocks(ran, [request["prompt"] for request in requests])  # type: ignore[misc]
    assert compared > 200
    assert differing == 0


def test_only_the_row_at_the_limit_stops_drafting(ran: Ran) -> None:
    """The last block that fits ends at the limit."""
    assert max(ran.proposals[0]) + 8 <= LIMIT
    assert max(ran.proposals[0]) + 2 * 8 > LIMIT
    assert all(ran.proposals[1:])


def test_vllms_own_way_would_show(drafted: VllmProcess, requests: list[dict[str, object]], ran: Ran) -> None:
    drafted.ask("reset_prefix_cache")
    with fault(drafted, "hole_left_in"):
        holed = drafted.run(requests)
    drafted.ask("reset_prefix_cache")
    assert holed.ids == ran.ids
    _, differing = differing_blocks(holed, [request["prompt"] for request in requests])  # type: ignore[misc]
    assert differing > 20
