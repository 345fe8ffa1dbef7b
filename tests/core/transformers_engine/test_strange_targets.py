"""Targets that look like any other and are not: each works as far as it can, and is refused in a sentence beyond."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from dflash2_core import Drafter, SamplingParams, TransformersEngine
from dflash2_core.errors import CompatibilityError
from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, VOCABULARY, drafter_config, random_drafter, randomise
from tests.core.transformers_engine.conftest import complete, random_prompt
from tests.core.transformers_engine.kinds import SHAPE

FITS = {"num_target_layers": None, "target_layer_ids": (0,)}
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "eos_token_id": EOS}


def bloom() -> PreTrainedModel:
    """ALiBi: its attention makes distances of a mask, and takes no other shape of one."""
    return BloomForCausalLM(BloomConfig(**SMALL, n_layer=2, n_head=2))


def gpt_neo() -> PreTrainedModel:
    """Its local layers count the window from the pass's end, in every row alike."""
    local = [[["global", "local"], 1]]
    return GPTNeoForCausalLM(
        GPTNeoConfig(**SMALL, num_layers=2, attention_types=local, num_heads=2, window_size=8, max_position_embeddings=256)
    )


def opt() -> PreTrainedModel:
    """Embedding and head are narrower than its layers."""
    return OPTForCausalLM(OPTConfig(**SMALL, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=8))


def gemma_3n() -> PreTrainedModel:
    """Each layer puts out several streams a token."""
    streams = {"altup_num_inputs": 2, "laurel_rank": 4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1}
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 2}
    return Gemma3nForCausalLM(
        Gemma3nTextConfig(**{**SHAPE, **layers}, vocab_size_per_layer_input=VOCABULARY, sliding_window=8, **streams)
    )


def target_of(build: Callable[[], PreTrainedModel]) -> Target:
    model = build().eval()
    randomise(model, seed=1, scale=0.6)
    return Target(model)


@pytest.mark.parametrize("build", [bloom, gpt_neo])
def test_a_model_whose_rows_must_be_of_one_length_drafts_alone(build: Callable[[], PreTrainedModel]) -> None:
    target, drafter = target_of(build), random_drafter(seed=2, **FITS)
    for length in (1, 9, 30):
        prompt = random_prompt(length, seed=length)
        ids = torch.tensor([prompt])
        text = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, eos_token_id=None, do_sample=False
        )
        completion = complete(TransformersEngine(target, drafter), prompt, max_new_tokens=16)
        assert completion.token_ids == text[0, length:].tolist()
        assert completion.stats.num_drafted > 0


@pytest.mark.parametrize(("build", "reason"), [(bloom, "ValueError"), (gpt_neo, "local attention")])
def test_its_batches_are_refused_with_the_reason(build: Callable[[], PreTrainedModel], reason: str) -> None:
    with pytest.raises(CompatibilityError, match=f"share a pass of .*{reason}.* keep max_batch_size at 1"):
        TransformersEngine(target_of(build), max_batch_size=2)


def test_a_model_that_takes_a_mask_and_does_not_heed_it_is_refused_for_batches() -> None:
    """Whatever model that may be: what a row is alone is seen, not believed."""
    target = target_of(opt)
    target.model.register_forward_pre_hook(
        lambda module, args, asked: (args, asked | {"attention_mask": None}), with_kwargs=True
    )
    TransformersEngine(target)
    with pytest.raises(CompatibilityError, match="a row's logits differ"):
        TransformersEngine(target, max_batch_size=2)


def test_batches_that_are_let_through_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "_why_alone", None)
    target = target_of(gpt_neo)
    prompts = [random_prompt(30, seed=1), random_prompt(3, seed=2)]
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    alone = TransformersEngine(target).generate(prompts, params)
    together = TransformersEngine(target, max_batch_size=2).generate(prompts, params)
    assert [c.token_ids for c in together] != [c.token_ids for c in alone]


def test_tables_of_another_width_than_the_layers_cannot_be_borrowed() -> None:
    target = target_of(opt)
    with pytest.raises(CompatibilityError, match="hidden size is 16 and it borrows .* whose width is 8"):
        TransformersEngine(target, random_drafter(**FITS))
    owner = Drafter(drafter_config(**FITS), own=["embed_tokens.weight", "lm_head.weight"])
    randomise(owner, seed=3)
    completion = complete(TransformersEngine(target, owner.requires_grad_(False)), random_prompt(9, seed=1))
    assert completion.token_ids == complete(TransformersEngine(target), random_prompt(9, seed=1)).token_ids
    assert completion.stats.num_drafted > 0


def test_layers_that_put_out_no_features_cannot_be_tapped() -> None:
    target, prompt = target_of(gemma_3n), random_prompt(9, seed=1)
    assert len(complete(TransformersEngine(target), prompt, max_new_tokens=4).token_ids) == 4
    with pytest.raises(CompatibilityError, match=r"Gemma3nForCausalLM cannot be tapped: \[1, 9\] tokens.* \[2, 1, 9, 16\]"):
        complete(TransformersEngine(target, random_drafter(**FITS)), prompt)
