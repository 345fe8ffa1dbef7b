"""All penalties at once. The repetition penalty does not commute with those that are added: their order is part of the law.

Plain SGLang without overlap has none: it walks a set of classes, and a set of classes has the order of their addresses, which
changes from start to start (UPSTREAM.md). With a drafter the order is always that of SGLang's overlap path: what is added, then
the repetition penalty. So the texts of the two are equal as far as two orders agree, and this is what is asserted: every id of
either is the target's best under one order, the drafter's under its own.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.engines.pair import target, thirty_prompts
from tests.sglang.asking import TOGETHER, Answer, assert_drafted, ids
from tests.sglang.conftest import Told

NAME = "penalties together"
ENDS = (0, 4)
OURS = ("presence", "frequency", "repetition")
ORDERS = (
    # all that differ: what is added commutes
    OURS,
    ("repetition", "presence", "frequency"),
    ("presence", "repetition", "frequency"),
    ("frequency", "repetition", "presence"),
)


def penalised(logits: Tensor, text: list[int], order: tuple[str, ...]) -> Tensor:
    """logits [T, V] before each id of a text of T, by the rules as they are written down, in this order."""
    z, V = logits.clone(), logits.shape[1]
    count = F.pad(F.one_hot(torch.tensor(text), V).cumsum(0), (0, 0, 1, 0))[:-1]
    r = TOGETHER["repetition_penalty"]
    for name in order:
        if name == "presence":
            z -= TOGETHER["presence_penalty"] * (count > 0)
        elif name == "frequency":
            z -= TOGETHER["frequency_penalty"] * count
        else:
            z = torch.where(count > 0, torch.where(z < 0, z * r, z / r), z)
    z[: int(TOGETHER["min_new_tokens"]), list(ENDS)] = -torch.inf
    return z


@torch.inference_mode()
def explained(answers: list[Answer]) -> dict[tuple[str, ...], list[bool]]:
    """Under each order, of which texts every id is the target's best."""
    found: dict[tuple[str, ...], list[bool]] = {order: [] for order in ORDERS}
    for prompt, text in zip(thirty_prompts(), ids(answers), strict=True):
        logits, _ = target().forward(torch.tensor([[*prompt, *text[:-1]]]), target().new_cache(), rows=len(text))
        for order, texts in found.items():
            texts.append(penalised(logits[0], text, order).argmax(-1).tolist() == text)
    return found


@pytest.fixture(scope="module")
def ours(drafted: Told) -> dict[tuple[str, ...], list[bool]]:
    return explained(drafted.cases[NAME])


@pytest.fixture(scope="module")
def theirs(plain: Told) -> dict[tuple[str, ...], list[bool]]:
    return explained(plain.cases[NAME])


def test_with_a_drafter_every_id_is_the_targets_best_under_the_documented_order(
    ours: dict[tuple[str, ...], list[bool]], drafted: Told
) -> None:
    assert all(ours[OURS])
    assert not any(all(ours[order]) for order in ORDERS if order != OURS), "the order would not matter"
    assert_drafted(drafted.cases[NAME])


def test_plain_sglangs_are_so_under_one_order_of_its_own(theirs: dict[tuple[str, ...], list[bool]]) -> None:
    assert sum(all(texts) for texts in theirs.values()) == 1


def test_the_two_write_the_same_wherever_the_orders_agree(
    theirs: dict[tuple[str, ...], list[bool]], plain: Told, drafted: Told
) -> None:
    equal = [a == b for a, b in zip(ids(plain.cases[NAME]), ids(drafted.cases[NAME]), strict=True)]
    print(sum(equal), "of 30 texts equal")
    assert equal == theirs[OURS]
    assert sum(equal) > 5
