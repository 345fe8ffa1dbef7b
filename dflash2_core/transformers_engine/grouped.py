"""Attention on a CPU where several query heads share keys and values: they are read as they lie, and not copied for every head.

`transformers` hands torch its keys and values repeated whenever there is a mask, which is every pass over a block: for 8 rows
after 4,000 positions that takes three times as long. The result is the same to the bit.
"""

import inspect
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "dflash2_grouped"


def keep_groups(model: PreTrainedModel) -> int:
    """Let those attention modules of a model on a CPU that would repeat keys and values read them as they are.

    A module looks its attention up by a name in its config: it is given a copy of that config with another name, and everything
    else (masks, the model's own config) stays as it is. Modules that use the name for anything else are left alone, and so are
    models whose attention is not sdpa. Returns how many modules changed.
    """
    if model.device.type != "cpu":  # a GPU has no fast kernel for groups with a mask
        return 0
    copies: dict[int, PretrainedConfig] = {}
    changed = 0
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(module, "num_key_value_groups", 1) > 1 and _looks_it_up(module, config):
            if id(config) not in copies:
                copies[id(config)] = deepcopy(config)
                copies[id(config)]._attn_implementation = NAME
            module.config = copies[id(config)]
            changed += 1
    return changed


def _looks_it_up(module: nn.Module, config: Any) -> bool:
    """Whether a module's attention is sdpa, and the name of it is read in one place, to find the function."""
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return False
    try:
        source = "".join(inspect.getsource(type(module)).split())
    except (OSError, TypeError):  # without source it cannot be told
        return False
    return source.count("_attn_implementation") == 1 and "get_interface(self.config._attn_implementation" in source


def _grouped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """query [B, heads, T, d], key and value [B, kv_heads, S, d], attention_mask [B, 1, T, S] -> [B, T, heads, d]."""
    more = [
        name
        for name in ("position_bias", "softcap", "output_attentions")
        if options.get(name) is not None and options[name] is not False
    ]
    if attention_mask is None or query.shape[2] == 1 or more or key.device.type != "cpu":  # these are not repeated there
        result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True
    )
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _grouped)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for modules that make a mask of their own by the same config
