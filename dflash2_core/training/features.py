"""One pass of the frozen target over whole documents: what a drafter is trained on."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dflash2_core.transformers_engine.target import Target


@torch.no_grad()
def target_features(target: Target, tokens: Tensor, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """tokens [D, T] int64, padded on the right -> taps [D, T, n_taps * H] and final hidden states [D, T, H].

    The taps are caught by hooks on the tapped layers alone; `target.head` takes the hidden states of the rows that are
    needed to logits, since for all rows these would be the largest tensor of the step.
    """
    caught: dict[int, Tensor] = {}

    def keeper(layer: int) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            caught[layer] = output if isinstance(output, Tensor) else output[0]

        return keep

    hooks = [target.layers[i].register_forward_hook(keeper(i)) for i in layer_ids]
    try:
        hidden = target.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([caught[i] for i in layer_ids], dim=-1), hidden
