"""The same weights in `dflash` 0.1.0, z-lab's own package, and here: the same hidden states, logits and drafts.

Cases the peer cannot run are left to the formula tests: a block shorter than the kernel, more than one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config

from dflash2_core import Drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.drafter import load_drafter
from dflash2_core.transformers_engine import Target
from tests.core.toys import random_drafter

dflash = pytest.importorskip("dflash.model", reason="the peer package dflash==0.1.0 is not installed: see ci/core.sh")

FULL, SLIDING = (None, None), (12, 12)
CASES = {
    "as published: sliding, not causal": {"layer_windows": SLIDING},
    "full attention, not causal": {"layer_windows": FULL},
    "causal and sliding": {"layer_windows": SLIDING, "layer_causal": (True, True)},
    "causal and full": {"layer_windows": FULL, "layer_causal": (True, True)},
    "a window shorter than the block": {"layer_windows": (5, 5)},
    "one full layer, one sliding": {"layer_windows": (None, 12)},
    "scale, multiplier and softcap": {
        "layer_windows": SLIDING,
        "input_embedding_scale": 3.5,
        "output_multiplier": 0.196,
        "final_logit_softcapping": 2.0,
    },
    "kernel 3": {"layer_windows": SLIDING, "conv_kernel_size": 3},
    "kernel 4, group 8": {"layer_windows": SLIDING, "conv_kernel_size": 4, "conv_group_size": 8},
    "kernel 5, group 1": {"layer_windows": SLIDING, "conv_kernel_size": 5, "conv_group_size": 1},
    "one tap": {"layer_windows": SLIDING, "target_layer_ids": (3,)},
    "five taps out of order": {"layer_windows": SLIDING, "target_layer_ids": (4, 0, 3, 1, 2)},
    "block 16, top-k 37": {"layer_windows": SLIDING, "block_size": 16, "selector_top_k": 37},
    "rope base 1e7": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "rope yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    },
    "rope llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    },
    "DFlash 1, full": {"version": 1, "layer_windows": FULL},
    "DFlash 1, sliding": {"version": 1, "layer_windows": SLIDING},
}


class Peer:
    """dflash 0.1.0's drafter with our weights, one row, driven as its own decode loop drives it."""

    def __init__(self, drafter: Drafter) -> None:
        settings = drafter.config.to_dict("zlab")
        kind = dflash.DFlash2DraftModel if drafter.config.version == 2 else dflash.DFlashDraftModel
        config = Qwen3Config(**settings)
        config._attn_implementation = "sdpa"
        self.model = kind(config).eval()
        weights = {
            name + ".weight" if name.endswith("_codebook") else name: tensor for name, tensor in drafter.state_dict().items()
        }
        self.model.load_state_dict(weights)
        self.cache = DynamicCache(config=config)
        self.cache.activate_past_recording()
        self.version, self.scale = drafter.config.version, drafter.config.input_embedding_scale

    def block(self, taps: Tensor, rows: Tensor, start: int) -> Tensor:
        """Append features [1, T, F] and run the block's raw rows [1, L, H] from position `start`."""
        positions = torch.arange(start - taps.shape[1], start + rows.shape[1])[None]
        hidden = self.model(
            target_hidden=taps,
            noise_embedding=rows * self.scale,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache.crop(-(self.cache.get_seq_length() - start))
        return hidden

    def drafts(self, hidden: Tensor, anchor: Tensor, head: nn.Module) -> Tensor:
        if self.version == 1:
            return self.model.compute_logits(hidden, head).argmax(-1)
        return self.model.propose(hidden, anchor, head, 0.0)[0]


@dataclass
class Cycle:
    taps: Tensor  # [1, n, F], newly committed
    anchor: Tensor  # [1]
    start: int
    drafts: int


def cycles(drafter: Drafter, prompt_length: int, seed: int) -> Iterator[Cycle]:
    """A prefill, then cycles that commit 1 .. block_size tokens."""
    config, generator = drafter.config, torch.Generator().manual_seed(seed)
    width = len(config.target_layer_ids) * config.target_hidden_size
    committed = 0
    for n in (prompt_length, 1, 3, config.block_size, 2, 5, config.block_size):
        committed += n
        yield Cycle(
            taps=torch.randn(1, n, width, generator=generator),
            anchor=torch.randint(config.vocab_size, (1,), generator=generator),
            start=committed,
            drafts=config.num_drafts,
        )


def random_head(V: int, H: int, generator: torch.Generator) -> nn.Linear:
    """Logits of the size of 1."""
    head = nn.Linear(H, V, bias=False)
    head.weight.data = torch.randn(V, H, generator=generator) / H**0.5
    return head


def compare(drafter: Drafter, prompt_length: int, seed: int, embedding: Tensor, head: nn.Module) -> int:
    peer, context, compared = Peer(drafter), drafter.new_context(), 0
    context.join()
    for cycle in cycles(drafter, prompt_length, seed):
        context.append(cycle.taps, [cycle.taps.shape[1]])
        L = cycle.drafts + 1
        ids = torch.full((1, L), drafter.config.mask_token_id)
        ids[:, 0] = cycle.anchor
        positions = torch.arange(cycle.start, cycle.start + L)[None]
        attend = context.views([L], L).attention(torch.tensor([cycle.start]), torch.tensor([L]), L)
        hidden = drafter.hidden(drafter.embed(ids, lambda x: embedding[x]), positions, attend)
        expected = peer.block(cycle.taps, embedding[ids], cycle.start)[:, -L:]
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
        logits = peer.model.compute_logits(expected, head)
        torch.testing.assert_close(drafter.logits(hidden, head), logits, atol=1e-5, rtol=1e-5)
        proposal = drafter.propose(
            context,
            cycle.anchor,
            [cycle.drafts],
            embed=lambda x: embedding[x],
            head=head,
            temperature=torch.zeros(1),
            streams=None,
        )
        assert proposal.lengths.tolist() == [cycle.drafts]
        assert torch.equal(proposal.tokens, peer.drafts(expected[:, 1:], cycle.anchor, head))
        compared += cycle.drafts
    return compared


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prompt_length", [1, 40])
@torch.inference_mode()
def test_hidden_states_logits_and_drafts_equal_the_peers(case: str, prompt_length: int) -> None:
    drafter = random_drafter(seed=1, **CASES[case])
    H, V = drafter.config.hidden_size, drafter.config.vocab_size
    generator = torch.Generator().manual_seed(2)
    head = random_head(V, H, generator)
    embedding = torch.randn(V, H, generator=generator)
    assert compare(drafter, prompt_length, 3, embedding, head) == 7 * drafter.config.num_drafts


@torch.inference_mode()
def test_they_are_equal_at_long_positions() -> None:
    drafter = random_drafter(seed=1, layer_windows=SLIDING, max_position_embeddings=262144)
    generator = torch.Generator().manual_seed(5)
    compare(drafter, 3000, 4, torch.randn(37, 16, generator=generator), random_head(37, 16, generator))


@pytest.mark.parametrize(
    "mutant", ["convolution off", "selector off", "causality flipped", "window one longer", "taps swapped"]
)
@torch.inference_mode()
def test_a_drafter_that_is_wrong_in_one_thing_is_told_from_the_peer(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = random_drafter(seed=1, layer_windows=SLIDING)
    wrong = {
        "causality flipped": {"layer_windows": SLIDING, "layer_causal": (True, True)},
        "window one longer": {"layer_windows": (13, 13)},
        "taps swapped": {"layer_windows": SLIDING, "target_layer_ids": (2, 0, 4)},
    }
    mutated = random_drafter(seed=1, **wrong.get(mutant, {"layer_windows": SLIDING}))
    mutated.load_state_dict(drafter.state_dict())
    peer_of = Peer
    monkeypatch.setitem(globals(), "Peer", lambda _: peer_of(drafter))
    if mutant == "convolution off":
        for layer in mutated.layers:
            layer.attention_conv = layer.mlp_conv = None
    if mutant == "selector off":
        torch.nn.init.zeros_(mutated.candidate_selector.successor_codebook)
    if mutant == "taps swapped":
        H = drafter.config.hidden_size
        order = torch.cat([torch.arange(H) + i * H for i in (1, 0, 2)])
        mutated.fc.weight.copy_(drafter.fc.weight[:, order])
    generator = torch.Generator().manual_seed(2)
    embedding, head = torch.randn(37, 16, generator=generator), random_head(37, 16, generator)
    compare(drafter, 40, 3, embedding, head)
    with pytest.raises(AssertionError):
        compare(mutated, 40, 3, embedding, head)


@torch.inference_mode()
def test_the_trained_pair_drafts_what_the_peer_drafts() -> None:
    pair = tiny_pair()
    target, drafter = Target.from_pretrained(pair.target), load_drafter(pair.drafter, dtype=torch.float32)
    embedding = target.model.get_input_embeddings().weight
    assert compare(drafter, 200, 8, embedding, target.model.get_output_embeddings()) > 0
