"""The MLX backend drafts what the core drafts, in float32, id by id. Run in the environment of ci/mlx.sh: `make test-mlx`."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import Tensor

import mlx_backend.drafter
from dflash2_core import Drafter, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from mlx_backend import MlxDrafter, load
from mlx_backend.math import best_candidates, greedy_walk
from tests.core.toys import VOCABULARY, drafter_config, randomise
from tests.engines.pair import drafts_at, target, thirty_prompts
from tests.speculators.blocks import blocks

STEP = 3
TOYS: dict[str, dict[str, Any]] = {
    "no windows": {},
    "windows": {"layer_windows": (9, 9)},
    "causal windows": {"layer_windows": (9, 9), "layer_causal": (True, True)},
    "mixed": {"layer_windows": (9, None), "layer_causal": (True, False)},
    "a window shorter than a block": {"layer_windows": (4, 4)},
    "DFlash 1": {"version": 1},
    "a kernel longer than a block": {"conv_kernel_size": 9},
    "one candidate": {"selector_top_k": 1},
    "scale, multiplier, cap": {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 3.0},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
}


def text() -> list[int]:
    """Longer than two windows of the embedded drafter, which is 96: prompts one after the other."""
    ids = [token for prompt in thirty_prompts() for token in prompt]
    assert len(ids) > 300
    return ids[:300]


def as_mlx(tensor: Tensor) -> mx.array:
    return mx.array(tensor.detach().float().numpy())


@torch.inference_mode()
def taps_of(ids: list[int], layers: tuple[int, ...]) -> Tensor:
    _, taps = target().forward(torch.tensor([ids]), target().new_cache(), rows=1, taps=layers)
    assert taps is not None
    return taps[0]


def tables() -> tuple[mx.array, mx.array]:
    """The target's embedding and head, [V, H] both."""
    every = torch.arange(load_drafter(tiny_pair().drafter).config.vocab_size)
    embedding = target().embed(every)
    width = embedding.shape[-1]
    return as_mlx(embedding), as_mlx(target().head(torch.eye(width)).T)


def drafts_in_mlx(drafter: MlxDrafter, ids: list[int], anchors: list[int], *, taps: mx.array | None = None) -> list[list[int]]:
    taps = as_mlx(taps_of(ids, drafter.config.target_layer_ids)) if taps is None else taps
    (embedding, head), context, found = tables(), drafter.new_context(), []
    for before, anchor in zip([0, *anchors], anchors, strict=False):
        context.append(taps[before:anchor])
        found.append(drafter.draft(context, ids[anchor], embedding, head))
    return found


@pytest.fixture(scope="module")
def anchors() -> list[int]:
    return list(range(1, len(text()), STEP))


@pytest.fixture(scope="module")
def expected(anchors: list[int]) -> list[list[int]]:
    return drafts_at(text(), anchors)


def test_the_embedded_drafter_drafts_the_same_ids_at_every_anchor(anchors: list[int], expected: list[list[int]]) -> None:
    assert len(anchors) == 100
    assert len({tuple(block) for block in expected}) > 50  # no constant drafter
    assert drafts_in_mlx(load(tiny_pair().drafter), text(), anchors) == expected


@pytest.mark.parametrize("lost", ["convolution", "selector", "window", "last feature"])
def test_a_part_that_is_lost_would_be_seen(
    lost: str, anchors: list[int], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants of the test above."""
    drafter, taps = load(tiny_pair().drafter), None
    match lost:
        case "convolution":
            monkeypatch.setattr(mlx_backend.drafter, "grouped_dynamic_conv", lambda x, base, delta: x)
        case "selector":
            name = "candidate_selector.successor_codebook"
            drafter.weights = {**drafter.weights, name: mx.zeros_like(drafter.weights[name])}
        case "window":
            monkeypatch.setattr(
                mlx_backend.drafter, "visible", lambda block, committed, *_: mx.ones((block, committed + block)) > 0
            )
        case _:
            taps = as_mlx(taps_of(text(), drafter.config.target_layer_ids))
            taps = mx.concatenate([taps[:1], taps[:-1]])
    assert drafts_in_mlx(drafter, text(), anchors, taps=taps) != expected


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("own", [(), ("embed_tokens.weight", "lm_head.weight", "mask_embedding")], ids=["borrowed", "own"])
def test_every_kind_of_drafter_drafts_the_same_ids(name: str, own: tuple[str, ...], tmp_path: Path) -> None:
    torch_drafter = Drafter(drafter_config(**TOYS[name]), own)
    randomise(torch_drafter, 1)
    save_drafter(torch_drafter.eval().requires_grad_(False), tmp_path / "drafter")
    generator = torch.Generator().manual_seed(2)
    taps = torch.randn(40, 48, generator=generator)
    ids = torch.randint(VOCABULARY - 3, (40,), generator=generator)
    embedding, head = (torch.randn(VOCABULARY, 16, generator=generator) for _ in range(2))
    anchors = [1, 2, 5, 11, 24, 39]
    logits, drafts = blocks(load_drafter(tmp_path / "drafter"), taps, ids, anchors, embedding, head)
    drafter = load(tmp_path / "drafter")
    for at, anchor in enumerate(anchors):
        context = drafter.new_context()
        context.append(as_mlx(taps[:anchor]))
        tables = as_mlx(embedding), as_mlx(head)
        rows = drafter._rows(int(ids[anchor]), tables[0])
        found = drafter.logits(drafter.hidden(context, rows), tables[1])[1:]
        np.testing.assert_allclose(np.array(found), logits[at].numpy(), rtol=1e-4, atol=1e-4)
        assert drafter.draft(context, int(ids[anchor]), *tables) == drafts[at].tolist()


def test_weights_in_bfloat16_are_kept_where_that_is_asked() -> None:
    drafter = load(tiny_pair().drafter, mx.bfloat16)
    assert {tensor.dtype for tensor in drafter.weights.values()} == {mx.bfloat16}
    [block] = drafts_in_mlx(drafter, text(), [7])
    assert len(block) == 7


def test_among_equal_logits_the_lowest_ids_are_the_candidates() -> None:
    assert best_candidates(mx.array([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]]), 4).tolist() == [[1, 2, 3, 4]]


def test_among_equal_scores_the_walk_takes_the_lowest_id() -> None:
    zeros = mx.zeros((6, 2))
    unary, candidates = mx.array([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]]), mx.array([[1, 3, 4], [0, 2, 5]])
    assert greedy_walk(unary, candidates, mx.zeros((2, 2)), zeros, zeros, 0) == [3, 0]


def test_features_that_are_not_finite_draft_nothing() -> None:
    drafter = load(tiny_pair().drafter)
    taps = taps_of(text()[:20], drafter.config.target_layer_ids).clone()
    taps[3, 5] = float("nan")
    assert drafts_in_mlx(drafter, text(), [10], taps=as_mlx(taps)) == [[]]
