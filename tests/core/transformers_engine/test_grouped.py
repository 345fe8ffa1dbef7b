"""Keys and values that query heads share are not copied for each of them, and nothing else changes."""

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from dflash2_core.assets import tiny_pair
from dflash2_core.transformers_engine import Target, grouped
from dflash2_core.transformers_engine.grouped import NAME, keep_groups
from tests.core.toys import VOCABULARY
from tests.core.transformers_engine.kinds import KINDS, SHAPE, target_of

SHARED = {"num_attention_heads": 4, "num_key_value_heads": 2}
STARTS = (5, 19, 1)


def logits_of(model: PreTrainedModel) -> list[torch.Tensor]:
    """Of prompts, of blocks of rows of different lengths, and of one row's block and step."""
    target = Target(model)
    ids = torch.arange(3 * 40).reshape(3, 40) % VOCABULARY
    cache, found = target.new_cache(3), []
    for row, start in enumerate(STARTS):
        found.append(target.forward(ids[row : row + 1, :start], cache, rows=start, first_row=row)[0])
    found.append(target.forward(ids[:, 20:28], cache, rows=8)[0])
    found.append(target.forward(ids[:, 28:29], cache, rows=1)[0])
    found.append(target.forward(ids[1:2, 30:38], cache, rows=8, first_row=1)[0])
    found.append(target.forward(ids[1:2, 38:39], cache, rows=1, first_row=1)[0])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_target_writes_the_same_to_the_bit(kind: str) -> None:
    model = target_of(kind, **SHARED).model
    expected = logits_of(deepcopy(model))
    changed = keep_groups(model)
    assert changed == (0 if kind in ("Gemma2, eager", "GPT-2") else SHAPE["num_hidden_layers"])
    for found, logits in zip(logits_of(model), expected, strict=True):
        assert torch.equal(found, logits)


def test_keys_are_not_repeated() -> None:
    """Neither for blocks nor where rows of different lengths share a pass."""
    target = Target.from_pretrained(tiny_pair().target)
    seen: list[tuple[int, bool]] = []
    attention = grouped.F.scaled_dot_product_attention

    def noted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append((key.shape[1], options.get("attn_mask") is not None))
        return attention(query, key, value, **options)

    with patch.object(torch.nn.functional, "scaled_dot_product_attention", noted):
        logits_of(target.model)
    heads = target.config.num_key_value_heads
    assert {shared for _, shared in seen} == {True, False}
    assert {number for number, _ in seen} == {heads}


def test_the_models_own_config_stays_as_it_is() -> None:
    target = Target.from_pretrained(tiny_pair().target)
    assert target.model.config._attn_implementation == "sdpa"
    own = {module.config._attn_implementation for module in target.model.modules() if isinstance(module, Qwen3Attention)}
    assert own == {NAME}


class Particular(Qwen3Attention):
    """As models have it that make more of their mask where the attention is called sdpa."""

    def forward(self, *args: Any, **options: Any) -> Any:
        assert self.config._attn_implementation in ("sdpa", "eager")
        return super().forward(*args, **options)


def test_a_module_that_asks_for_the_name_is_left_alone() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE | SHARED))
    model.model.layers[0].self_attn.__class__ = Particular
    assert keep_groups(model) == SHAPE["num_hidden_layers"] - 1
    logits_of(model)


def test_attention_that_is_not_sdpa_is_left_alone() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE | SHARED, attn_implementation="eager"))
    assert keep_groups(model) == 0


def test_what_is_added_to_the_scores_is_left_to_transformers() -> None:
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8)
    module = Qwen3Attention(Qwen3Config(**SHAPE | SHARED), 0)
    mask, bias = torch.ones(1, 1, 5, 9, dtype=torch.bool), torch.randn(1, 4, 5, 9)
    own, _ = grouped.sdpa_attention_forward(module, q, k, k, mask, position_bias=bias)
    found, _ = grouped._grouped(module, q, k, k, mask, position_bias=bias)
    assert torch.equal(found, own)
