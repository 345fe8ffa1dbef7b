"""`input_embeds` in the model's own dtype: SGLang makes bfloat16 of them, whatever the model computes in."""

from collections.abc import Callable
from typing import Any


def extend_forward_kwargs(
    original: Callable[..., dict[str, Any]], runner: Any, forward_batch: Any, pp_proxy_tensors: Any
) -> dict[str, Any]:
    """Around `ModelRunner._extend_forward_kwargs`, for the drafter's runner alone: its rows come as the target's embeddings."""
    kwargs = original(runner, forward_batch, pp_proxy_tensors)
    if runner.is_draft_worker and forward_batch.input_embeds is not None:
        kwargs["input_embeds"] = forward_batch.input_embeds.to(runner.dtype)
    return kwargs
