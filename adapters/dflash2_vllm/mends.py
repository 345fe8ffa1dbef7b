"""Two faults of vLLM's CPU build that every speculative method meets: probed, and mended only where the probe fails.

Both are described, with what reproduces them, in UPSTREAM.md.
"""

import logging
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_vllm.hooks import EXPAND, NORMALIZE, find, replace

logger = logging.getLogger("vllm.dflash2")


def mend_what_fails() -> list[str]:
    """The places that were mended in this process. On other platforms than a CPU nothing is touched, or even tried."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return []
    mended = []
    if not norms_each_layer_by_its_own_weight(find(NORMALIZE)):
        replace(NORMALIZE, normalize_context_k)
        mended.append(NORMALIZE)
    if not expands(find(EXPAND)):
        replace(EXPAND, expand_batch_to_tokens)
        mended.append(EXPAND)
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
    """Temperatures and counts of two rows: a fresh tensor may hold the right numbers by chance, hence several."""
    ends = torch.tensor([3, 5], dtype=torch.int32)
    rows = torch.tensor([0, 0, 0, 1, 1])
    for values in (torch.tensor([0.625, 0.0]), torch.tensor([7, 23], dtype=torch.int32), torch.tensor([1.75, 0.3125])):
        found = expand(values, ends, 5, replace_from=0, replace_to=1)
        if not torch.equal(found, torch.where(values == 0, 1, values)[rows].to(values.dtype)):
            return False
    return True


def normalize_context_k(self: Any, all_k: Tensor) -> Tensor:
    """`DFlashQwen3Model._normalize_context_k`. all_k [layers, T, kv_heads, head_dim], each layer under its own weight."""
    from vllm import _custom_ops as ops

    normed = torch.empty_like(all_k)
    for layer, weight in enumerate(self._k_norm_weights):
        ops.rms_norm(normed[layer], all_k[layer], weight, self._rms_norm_eps)
    return normed


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """`rejection_sampler.expand_batch_to_tokens`. x [B], one value a request -> [num_tokens], one a draft; dtype kept.

    cu_num_tokens  [B], where each request's drafts end
    replace_from   value that becomes `replace_to`
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return values.repeat_interleave(counts, output_size=num_tokens)
