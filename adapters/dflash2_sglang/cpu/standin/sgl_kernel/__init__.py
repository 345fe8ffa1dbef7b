"""What SGLang imports from the CPU build of `sgl_kernel`, which no registry has: the few index operations, in torch.

`dflash2_sglang.cpu.standin` puts this folder at the end of the path, so that a real `sgl_kernel` is always found before it.
Only names that SGLang imports unconditionally are here. Those that DFLASH never calls say so when they are called.
"""

import ctypes
from collections.abc import Callable
from typing import NoReturn

from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write each request's next slots, which stand one request after the other in `out_cache_loc`, into its row of the table.

    req_to_token   [rows, pool_len] int32, written
    start_offset, end_offset  [B], the columns of each request
    """
    begin = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[begin : begin + end - start].to(req_to_token.dtype)
        begin += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read what `assign_req_to_token_pool_cpu` writes: `out_cache_loc` [sum of lengths] int64 is written."""
    begin = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        out_cache_loc[begin : begin + end - start] = req_to_token[row, start:end]
        begin += end - start


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots of every buffer: `data_ptrs` are their addresses, `strides` the bytes of one slot.

    All slots are read before any is written, since a target may be another's source.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(address + source * size, size) for source in sources]
        for target, content in zip(targets, read, strict=True):
            ctypes.memmove(address + target * size, content, size)


def _absent(name: str) -> Callable[..., NoReturn]:
    def absent(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"{name} is not in dflash2's stand-in for sgl_kernel: what calls it (EAGLE, NGRAM) needs SGLang's own CPU build"
        )

    return absent


assign_draft_cache_locs_contiguous_cpu = _absent("assign_draft_cache_locs_contiguous_cpu")
build_tree_kernel_efficient_cpu = _absent("build_tree_kernel_efficient_cpu")
fill_accept_out_cache_loc_cpu = _absent("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _absent("fill_bonus_tokens_cpu")
verify_tree_greedy_cpu = _absent("verify_tree_greedy_cpu")
