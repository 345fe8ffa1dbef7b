"""What does not fit is refused at the door, in a sentence that names both numbers; what drafts badly is told of once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV32Config,
    Lfm2Config,
    Lfm2ForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedModel,
)

from dflash2_core import Drafter, SamplingParams, TransformersEngine, save_drafter
from dflash2_core.errors import CheckpointError, CompatibilityError, ConfigError, Dflash2Error, SamplingError
from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, drafter_config, random_drafter, toy_model
from tests.core.transformers_engine.conftest import complete, random_prompt
from tests.core.transformers_engine.test_stopping import LETTERS

PROMPT = random_prompt(9, seed=1)


MISFITS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "features of another width": ({"target_hidden_size": 24}, ("24", "16")),
    "another hidden size": ({"hidden_size": 32}, ("32", "16")),
    "a larger vocabulary": ({"vocab_size": 40}, ("40", "37")),
    "a smaller vocabulary": ({"vocab_size": 36, "mask_token_id": 33}, ("36", "37")),
    "a target of another depth": ({"num_target_layers": 8}, ("8", "6")),
    "a tap past the last layer": ({"target_layer_ids": (0, 7), "num_target_layers": None}, ("7", "5")),
    "a tap on the last layer": ({"target_layer_ids": (0, 5), "num_target_layers": None}, ("5", "last")),
    "a mask that is the end of sequence": ({"mask_token_id": EOS}, (str(EOS), "end-of-sequence")),
    "a mask past the vocabulary": ({"mask_token_id": 38, "vocab_size": 39}, ("38", "36")),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_drafter_that_does_not_fit_is_refused_with_both_numbers(misfit: str, target: Target) -> None:
    changes, numbers = MISFITS[misfit]
    with pytest.raises(CompatibilityError) as refusal:
        TransformersEngine(target, random_drafter(**changes))
    for number in numbers:
        assert number in str(refusal.value)


def test_every_misfit_is_named_at_once(target: Target) -> None:
    with pytest.raises(CompatibilityError) as refusal:
        TransformersEngine(target, random_drafter(vocab_size=40, num_target_layers=8, target_hidden_size=24))
    assert str(refusal.value).count(";") == 2


def test_a_mask_that_is_the_tokenizers_padding_is_refused() -> None:
    target = Target(toy_model(), LETTERS)
    with pytest.raises(CompatibilityError, match="padding"):
        TransformersEngine(target, random_drafter(mask_token_id=LETTERS.pad_token_id))


def test_a_drafter_with_its_own_embedding_and_head_needs_no_hidden_size_of_the_targets(target: Target) -> None:
    config = drafter_config(hidden_size=32)
    owner = Drafter(config, own=["embed_tokens.weight", "lm_head.weight"])
    for own in (["embed_tokens.weight"], ["lm_head.weight"]):
        with pytest.raises(CompatibilityError, match="32"):
            TransformersEngine(target, Drafter(config, own=own))
    completion = complete(TransformersEngine(target, owner.requires_grad_(False)), PROMPT)
    assert completion.token_ids == complete(TransformersEngine(target), PROMPT).token_ids
    assert completion.stats.num_drafted > 0


def test_a_drafter_of_another_width_that_would_broadcast_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_core.transformers_engine.engine.require_fit", lambda *_, **__: None)
    for misfit in ("a smaller vocabulary", "a target of another depth", "a mask that is the end of sequence"):
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            test_a_drafter_that_does_not_fit_is_refused_with_both_numbers(misfit, target)


SMALL = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": EOS,
}


def mamba() -> PreTrainedModel:
    return Mamba2ForCausalLM(
        Mamba2Config(vocab_size=37, hidden_size=16, num_hidden_layers=2, state_size=8, head_dim=8, num_heads=4, n_groups=1)
    )


def lfm2() -> PreTrainedModel:
    return Lfm2ForCausalLM(Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]))


@pytest.mark.parametrize("build", [mamba, lfm2])
def test_a_target_whose_state_cannot_be_rolled_back_is_refused(build: Callable[[], PreTrainedModel]) -> None:
    with pytest.raises(CompatibilityError, match="roll back"):
        Target(build())


def test_a_kind_of_layer_that_nobody_has_heard_of_is_refused() -> None:
    """Only kinds known to keep plain keys and values pass: the next kind of state must not slip through."""
    model = toy_model()
    model.config.layer_types = ["full_attention"] * 5 + ["indexed_attention"]
    assert DeepseekV32Config().layer_types[0] == "indexed_attention"
    with pytest.raises(CompatibilityError, match="indexed_attention"):
        Target(model)


def test_a_recurrent_target_that_is_let_through_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_core.transformers_engine.target.ORDINARY_LAYERS", ("full_attention", "conv"))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_target_whose_state_cannot_be_rolled_back_is_refused(lfm2)


DAMAGED = (
    "no weights",
    "torn",
    "nonsense",
    "no JSON",
    "torn tokenizer",
    "no tokenizer",
    "torn generation config",
    "a layer less",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    paths = {name: root / name for name in ("target", "drafter", "empty", *DAMAGED)}
    toy_model().save_pretrained(paths["target"])
    LETTERS.save_pretrained(paths["target"])
    save_drafter(random_drafter(), paths["drafter"])
    paths["empty"].mkdir()
    for name in DAMAGED:
        shutil.copytree(paths["target"], paths[name])
    (paths["no weights"] / "model.safetensors").unlink()
    weights = (paths["target"] / "model.safetensors").read_bytes()
    (paths["torn"] / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    (paths["nonsense"] / "config.json").write_text("{}")
    (paths["no JSON"] / "config.json").write_text("\x00\xff{")
    (paths["torn tokenizer"] / "tokenizer.json").write_text('{"model": 1}')
    for tokenizer_file in paths["no tokenizer"].glob("*token*"):
        tokenizer_file.unlink()
    (paths["torn generation config"] / "generation_config.json").write_text("{")
    config = json.loads((paths["a layer less"] / "config.json").read_text())
    config |= {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    (paths["a layer less"] / "config.json").write_text(json.dumps(config))
    return paths


def test_a_pair_of_folders_loads_and_decodes(folders: dict[str, Path]) -> None:
    engine = TransformersEngine.from_pretrained(folders["target"], folders["drafter"], device="cpu")
    alone = TransformersEngine.from_pretrained(folders["target"], device="cpu")
    (completion,) = engine.generate("abc", SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert completion.token_ids == alone.generate("abc", SamplingParams(max_new_tokens=12, ignore_eos=True))[0].token_ids
    assert completion.num_prompt_tokens == 3
    assert completion.stats.num_drafted > 0
    assert engine.target.dtype == torch.float32


def test_a_path_that_no_file_system_takes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="File name too long"):
        TransformersEngine.from_pretrained("a" * 300)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")], ids=str)
def test_a_cpu_by_any_name_decodes_in_float32(device: Any, folders: dict[str, Path]) -> None:
    model = toy_model().bfloat16()
    model.save_pretrained(folders["empty"] / "half")
    LETTERS.save_pretrained(folders["empty"] / "half")
    assert TransformersEngine.from_pretrained(folders["empty"] / "half", device=device).target.dtype == torch.float32


@pytest.mark.parametrize("name", ["missing", "empty", "drafter", *DAMAGED])
def test_a_folder_that_holds_no_target_is_refused_with_its_path(name: str, folders: dict[str, Path]) -> None:
    path = folders.get(name, folders["empty"] / "nowhere")
    with pytest.raises(CheckpointError) as refusal:
        TransformersEngine.from_pretrained(path, device="cpu")
    assert str(path) in str(refusal.value)


def test_a_folder_that_holds_no_drafter_is_refused(folders: dict[str, Path]) -> None:
    for name in ("target", "empty"):
        with pytest.raises((CheckpointError, ConfigError)):
            TransformersEngine.from_pretrained(folders["target"], folders[name], device="cpu")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0"),
        ({"dtype": "int8"}, "int8"),
        ({"dtype": "nonsense"}, "nonsense"),
        ({"device": "nowhere"}, "nowhere"),
        ({"device": "meta"}, "meta"),
        ({"block_size": 5}, "block size 5 .* no drafter"),
        ({"block_size": 1}, "block size 1 .* no drafter"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_at_load(options: dict[str, object], words: str, folders: dict[str, Path]) -> None:
    with pytest.raises(CompatibilityError, match=words):
        TransformersEngine.from_pretrained(folders["target"], **({"device": "cpu"} | options))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([1, 37], "37; .* 0..36"),
        ([-1], "-1; .* 0..36"),
        ([1, 2.5], "token ids"),
        ("text", "tokenizer"),
    ],
    ids=repr,
)
def test_a_prompt_that_cannot_be_read_is_refused_before_a_token_is_made(prompt: object, words: str, target: Target) -> None:
    for drafter in (None, random_drafter()):
        engine = TransformersEngine(target, drafter)
        with pytest.raises(SamplingError, match=words):
            engine.generate([prompt])  # type: ignore[list-item]
        with pytest.raises(SamplingError, match=words):
            engine.stream(prompt)  # type: ignore[arg-type]


def test_an_empty_text_is_an_empty_prompt() -> None:
    with pytest.raises(SamplingError, match="empty"):
        TransformersEngine(Target(toy_model(), LETTERS)).generate("")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": "abc"}, "tokenizer"),
        ({"stop_token_ids": [37]}, "37"),
        ({"logit_bias": {40: 1.0}}, "40"),
    ],
)
def test_an_option_that_would_not_be_honoured_is_refused(options: dict[str, object], words: str, target: Target) -> None:
    for drafter in (None, random_drafter()):
        with pytest.raises(SamplingError, match=words):
            complete(TransformersEngine(target, drafter), PROMPT, **options)


def test_one_bad_request_stops_all_before_a_token_is_made(target: Target) -> None:
    passes: list[int] = []
    handle = target.model.register_forward_hook(lambda *_: passes.append(1))
    try:
        with pytest.raises(SamplingError):
            TransformersEngine(target).generate([PROMPT, [99]])
    finally:
        handle.remove()
    assert not passes


def test_prompts_and_params_must_be_as_many(target: Target) -> None:
    with pytest.raises(SamplingError, match="2 prompts came with 3 params"):
        TransformersEngine(target).generate([PROMPT, PROMPT], [SamplingParams()] * 3)


def test_prompts_may_be_ids_arrays_or_tensors_one_or_many(target: Target) -> None:
    engine, params = TransformersEngine(target), SamplingParams(max_new_tokens=4, ignore_eos=True)
    (expected,) = (completion.token_ids for completion in engine.generate(PROMPT, params))
    for prompts in (
        [PROMPT],
        tuple(PROMPT),
        np.array(PROMPT),
        torch.tensor(PROMPT),
        torch.tensor([PROMPT]),
        [torch.tensor(PROMPT)],
    ):
        assert [completion.token_ids for completion in engine.generate(prompts, params)] == [expected]
    many = engine.generate([PROMPT, PROMPT[:3]], [params, SamplingParams(max_new_tokens=2, ignore_eos=True)])
    assert [len(completion.token_ids) for completion in many] == [4, 2]
    assert engine.generate([]) == []


@pytest.mark.parametrize("prompts", [None, 5, torch.tensor(5), [True, False], [[1, True]], "\udcff"], ids=repr)
def test_what_is_no_prompt_at_all_is_refused(prompts: Any) -> None:
    with pytest.raises(SamplingError):
        TransformersEngine(Target(toy_model(), LETTERS)).generate(prompts)


def test_params_of_another_kind_are_refused(target: Target) -> None:
    with pytest.raises(SamplingError, match="SamplingParams"):
        TransformersEngine(target).generate([PROMPT], {"temperature": 1})  # type: ignore[arg-type]


def test_ids_of_numpy_are_ids(target: Target) -> None:
    engine, params = TransformersEngine(target), SamplingParams(max_new_tokens=3)
    as_numpy: Any = [np.int64(token) for token in PROMPT]
    assert engine.generate(as_numpy, params)[0].token_ids == engine.generate([PROMPT], params)[0].token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_that_forbid_every_id_are_named_as_the_cause(temperature: float, target: Target) -> None:
    with pytest.raises(Dflash2Error, match="forbid"):
        complete(
            TransformersEngine(target),
            PROMPT,
            temperature=temperature,
            logits_processor=lambda history, logits: torch.full_like(logits, -torch.inf),
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_whose_logits_are_not_finite_ends_in_a_sentence(temperature: float) -> None:
    model = toy_model()
    model.lm_head.weight.data.fill_(torch.nan)
    for drafter in (None, random_drafter()):
        with pytest.raises(Dflash2Error, match=r"(?i)nan"):
            complete(TransformersEngine(Target(model), drafter), PROMPT, temperature=temperature)
