"""Faults put in, or left in, for a test that has to see them. Imported by `worker.py`, in vLLM's process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.sample import rejection_sampler

from dflash2_core.drafter import best_candidates
from dflash2_core.drafter.selector import transition_scores
from dflash2_vllm import hooks, mends, proposer
from dflash2_vllm.drafting import Drafts, draft

EXPAND = rejection_sampler.expand_batch_to_tokens


def sound(runner: Any) -> None:
    """As the plugin left it."""
    rejection_sampler.expand_batch_to_tokens = EXPAND
    hooks.replace(hooks.NORMALIZE, mends.normalize_context_k)
    proposer.draft = draft
    runner._input_fits_in_drafter = lambda metadata: metadata is not None


def expand_left_in(_: Any) -> None:
    """What vLLM's CPU build does: a copy is filled and thrown away, and what comes back is whatever was in memory."""

    def expand(x: Tensor, ends: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Tensor:
        expanded = x.new_empty(num_tokens)
        torch.ops._C.expand_kernel_impl(expanded.long(), x.long(), ends.long(), replace_from, replace_to)
        return expanded

    rejection_sampler.expand_batch_to_tokens = expand


def norms_left_in(_: Any) -> None:
    """vLLM's own: one call for all layers, of which the CPU kernel takes the first layer's weight for all."""

    def normalize(self: Any, all_k: Tensor) -> Tensor:
        normed = torch.empty_like(all_k)
        ops.rms_norm(normed, all_k, self._k_norm_weights, self._rms_norm_eps)
        return normed

    hooks.replace(hooks.NORMALIZE, normalize)


def argmax_with_softmax_q(_: Any) -> None:
    """The walk takes the best, and says that it was drawn."""

    def walked(
        logits: Tensor, hidden: Tensor, selector: Any, anchors: Tensor, temperature: Tensor | None, uniforms: Tensor | None
    ) -> Drafts:
        drafts = draft(logits, hidden, selector, anchors, None, None)
        if temperature is None:
            return drafts
        unary, candidates = best_candidates(logits, selector.top_k)
        tables = selector.predecessor_codebook, selector.successor_codebook
        scores = transition_scores(unary, candidates, selector.hidden_projection(hidden), *tables, anchors)
        before = torch.zeros_like(drafts.tokens)  # the index of the token that each step follows
        before[:, 1:] = (candidates == drafts.tokens[..., None]).long().argmax(-1)[:, :-1]
        along = scores.gather(2, before[:, :, None, None].expand(-1, -1, 1, scores.shape[-1]))[:, :, 0]
        q = (along / temperature.clamp(min=1e-5)[:, None, None]).softmax(-1)
        probs = torch.zeros(logits.shape, dtype=torch.float32)
        return drafts._replace(probs=probs.scatter_(-1, candidates, q))

    proposer.draft = walked


def hole_left_in(runner: Any) -> None:
    """vLLM's own: one row near the limit stops drafts, and the writing of context, for all."""
    del runner._input_fits_in_drafter


MUTANTS: dict[str, Callable[[Any], None]] = {
    mutant.__name__: mutant for mutant in (sound, expand_left_in, norms_left_in, argmax_with_softmax_q, hole_left_in)
}
