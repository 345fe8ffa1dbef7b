"""Faults of vLLM's CPU build, met by every speculative method: each is probed, and mended only where its probe fails.

They are described, with what reproduces them, in UPSTREAM.md.
"""

import logging
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_vllm.hooks import BOOKKEEPING, EXPAND, NORMALIZE, SAMPLE, TOP_K, find, replace

logger = logging.getLogger("vllm.dflash2")


def mend_what_fails() -> list[str]:
    """The places that were mended in this process. On other platforms than a CPU nothing is touched, or even tried."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return []
    mended = []
    for place, probe, mend in (
        (NORMALIZE, norms_each_layer_by_its_own_weight, lambda _: normalize_context_k),
        (EXPAND, expands, lambda _: expand_kernel),
        (TOP_K, takes_no_rows, with_no_rows),
        (SAMPLE, takes_draws_back, with_chunks_aside),
        (BOOKKEEPING, takes_draws_back, chunks_put_back),
    ):
        if not probe(find(place)):
            replace(place, mend(find(place)))
            mended.append(place)
    if mended:
        logger.info("dflash2: mended for this CPU build of vLLM: %s", ", ".join(mended))
    return mended


def norms_each_layer_by_its_own_weight(normalize: Any) -> bool:
    """Two layers of unlike weights, one key each."""
    keys = torch.linspace(-1, 2, 2 * 32).view(2, 1, 1, 32)
    weights = torch.stack((torch.linspace(0.5, 1.5, 32), torch.linspace(3.0, 1.0, 32)))
    expected = F.rms_norm(keys, (32,), eps=1e-6) * weights[:, None, None]
    found = normalize(SimpleNamespace(_k_norm_weights=weights, _rms_norm_eps=1e-6), keys.clone())
    return torch.allclose(found, expected, atol=1e-4)


def expands(expand: Any) -> bool:
    """Temperatures and counts of two requests with three and two drafts; what it should write is not there before."""
    ends = torch.tensor([3, 5], dtype=torch.int32)
    for values in (torch.tensor([0.625, 0.0]), torch.tensor([7, 0], dtype=torch.int32)):
        written = torch.full((5,), -1, dtype=values.dtype)
        expand(written, values, ends, 0, 1, MAX_NUM_TOKENS=128)
        if written.tolist() != [values[0].item()] * 3 + [1] * 2:
            return False
    return True


def takes_no_rows(apply_top_k_only: Any) -> bool:
    """A step in which nothing is verified, as the first after a prompt, has no row."""
    try:
        return len(apply_top_k_only(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int32))) == 0
    except RuntimeError:
        return False


def takes_draws_back(_: Any) -> bool:
    """The runner turns a seed's generator back by what a part of a prompt, which emits nothing, has drawn from it."""
    try:
        torch.Generator().get_offset()
    except RuntimeError:
        return False
    return True


def normalize_context_k(self: Any, all_k: Tensor) -> Tensor:
    """`DFlashQwen3Model._normalize_context_k`. all_k [layers, T, kv_heads, head_dim], each layer under its own weight."""
    from vllm import _custom_ops as ops

    normed = torch.empty_like(all_k)
    for layer, weight in enumerate(self._k_norm_weights):
        ops.rms_norm(normed[layer], all_k[layer], weight, self._rms_norm_eps)
    return normed


def expand_kernel(
    output: Tensor,
    input_val: Tensor,
    cu_num_tokens: Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """`cpu_triton_utils._expand_kernel_impl`. input_val [B], one value a request -> output [T], one a draft, any dtype.

    cu_num_tokens   [B], where each request's drafts end
    replace_from    value that becomes `replace_to`
    MAX_NUM_TOKENS  a constant of the kernel that this stands in for
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, replace_to, input_val).to(output.dtype)
    output.copy_(values.repeat_interleave(counts, output_size=len(output)))


def with_no_rows(original: Any) -> Any:
    """`topk_topp_sampler.apply_top_k_only`, which then has nothing to do."""

    @wraps(original)
    def apply_top_k_only(logits: Tensor, k: Tensor) -> Tensor:
        kept: Tensor = original(logits, k) if len(logits) else logits
        return kept

    return apply_top_k_only


def with_chunks_aside(original: Any) -> Any:
    """`GPUModelRunner._sample`: rows whose id will be thrown away draw from no seed, so that there is nothing to turn back."""

    @wraps(original)
    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        generators = self.input_batch.generators
        thrown_away = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        self.dflash2_set_aside = {row: generators.pop(row) for row in thrown_away if row in generators}
        return original(self, logits, spec_decode_metadata)

    return _sample


def chunks_put_back(original: Any) -> Any:
    """`GPUModelRunner._bookkeeping_sync`, which would turn the generators back; it follows `_sample`."""

    @wraps(original)
    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(self, *args, **kwargs)
        self.input_batch.generators.update(self.dflash2_set_aside)
        return done

    return _bookkeeping_sync
