"""What a run cannot do ends in a sentence, before the target has answered anything if possible."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from dflash2_core.drafter import Drafter
from dflash2_core.errors import CheckpointError, ConfigError, Dflash2Error
from dflash2_core.training.documents import Document
from dflash2_core.training.evaluation import evaluate
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.losses import Objective
from dflash2_core.training.prompts import read_prompts
from dflash2_core.training.regenerate import regenerate
from dflash2_core.training.responses import Responses, documents_for
from dflash2_core.training.shape import Shape, config_for
from dflash2_core.training.start import copy_from_target, freeze, new_drafter
from dflash2_core.transformers_engine import Target
from tests.core.toys import MASK, drafter_config, randomise, toy_model, toy_target

SETTINGS = Settings(steps=4, documents=3, anchors=4, learning_rate=0.01, save_every=1)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": -5},
        {"steps": None, "minutes": 0.0},
        {"steps": None, "minutes": -1.0},
        {"steps": None, "minutes": NAN},
        {"documents": 0},
        {"anchors": 0},
        {"learning_rate": NAN},
        {"learning_rate": -1.0},
        {"clip": 0.0},
        {"warmup": 1.0},
        {"save_every": -1},
        {"evaluate_every": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(Dflash2Error, match=list(wrong)[-1]):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize("gamma", [0.0, -1.0, NAN, INF])
def test_a_gamma_that_weights_nothing_is_refused(gamma: float) -> None:
    with pytest.raises(Dflash2Error, match="gamma"):
        Objective(gamma=gamma)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"temperatures": (-1.0,)}, "temperatures"),
        ({"temperatures": (0.0, NAN)}, "temperatures"),
        ({"temperatures": ()}, "temperatures"),
        ({"max_new_tokens": 1}, "max_new_tokens"),
        ({"max_new_tokens": -3}, "max_new_tokens"),
    ],
    ids=str,
)
def test_responses_that_nothing_could_be_learnt_from_are_refused(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(Dflash2Error, match=name):
        Responses(**({"prompts": Path("p"), "temperatures": (0.0,), "max_new_tokens": 8} | wrong))


def test_a_loss_that_is_no_longer_finite_ends_the_run(target: Target, documents: list[Document]) -> None:
    run = train(new_drafter(drafter_config(), 0), target, documents, [], replace(SETTINGS, steps=50, learning_rate=1e30))
    with pytest.raises(Dflash2Error, match="the loss is nan|the loss is inf"):
        list(run)


def test_responses_that_all_end_at_once_are_nothing_to_learn_from(target: Target) -> None:
    short = [Document([1, 2, 3], 2), Document([4, 5, 6, 7], 3)]
    with pytest.raises(Dflash2Error, match="none of the 2 documents"):
        next(train(new_drafter(drafter_config(), 0), target, short, [], SETTINGS))
    with pytest.raises(Dflash2Error, match="nothing to measure"):
        evaluate(new_drafter(drafter_config(), 0), target, short)


def test_any_seed_of_64_bits_will_do(target: Target, documents: list[Document]) -> None:
    drafter = new_drafter(drafter_config(), 0)
    assert len(list(train(drafter, target, documents, [], replace(SETTINGS, seed=2**60)))) == SETTINGS.steps


def run_in(folder: Path, target: Target, documents: list[Document], **changes: Any) -> None:
    drafter = new_drafter(drafter_config(), 0)
    list(train(drafter, target, documents, [], replace(SETTINGS, **changes), folder))


def other_taps(target: Target, documents: list[Document], folder: Path) -> None:
    again(target, documents, folder, new_drafter(drafter_config(target_layer_ids=(1, 3, 4)), 0))


def other_rate(target: Target, documents: list[Document], folder: Path) -> None:
    again(target, documents, folder, learning_rate=0.1)


def other_optimizer(target: Target, documents: list[Document], folder: Path) -> None:
    again(target, documents, folder, optimizer="muon")


def other_loss(target: Target, documents: list[Document], folder: Path) -> None:
    again(target, documents, folder, objective=Objective(mix="ce"))


def other_documents(target: Target, documents: list[Document], folder: Path) -> None:
    again(target, documents[1:], folder)


def frozen(target: Target, documents: list[Document], folder: Path) -> None:
    drafter = new_drafter(drafter_config(), 0)
    freeze(drafter, ["selector"])
    again(target, documents, folder, drafter)


def torn_weights(target: Target, documents: list[Document], folder: Path) -> None:
    path = folder / "latest" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    again(target, documents, folder)


def empty_state(target: Target, documents: list[Document], folder: Path) -> None:
    (folder / "latest" / "run.json").write_text("{}")
    again(target, documents, folder)


def again(target: Target, documents: list[Document], folder: Path, drafter: Drafter | None = None, **changes: Any) -> None:
    drafter = drafter or new_drafter(drafter_config(), 0)
    list(train(drafter, target, documents, [], replace(SETTINGS, steps=6, **changes), folder, resume=True))


@pytest.mark.parametrize(
    "change",
    [other_taps, other_rate, other_optimizer, other_loss, other_documents, frozen, torn_weights, empty_state],
    ids=lambda change: change.__name__,
)
def test_a_run_is_resumed_as_itself_or_not_at_all(
    change: Callable[..., None], target: Target, documents: list[Document], tmp_path: Path
) -> None:
    run_in(tmp_path, target, documents)
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        change(target, documents, tmp_path)


def test_a_longer_run_goes_on_and_the_log_has_each_step_once(target: Target, documents: list[Document], tmp_path: Path) -> None:
    run_in(tmp_path, target, documents)
    again(target, documents, tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_folder_with_a_run_is_not_begun_again(target: Target, documents: list[Document], tmp_path: Path) -> None:
    run_in(tmp_path, target, documents)
    with pytest.raises(Dflash2Error, match="holds a run already"):
        run_in(tmp_path, target, documents)


def test_a_run_that_died_between_two_checkpoints_goes_on_from_the_one_before(
    target: Target, documents: list[Document], tmp_path: Path
) -> None:
    run_in(tmp_path, target, documents)
    (tmp_path / "latest").rename(tmp_path / "previous")
    (tmp_path / "incoming").mkdir()
    again(target, documents, tmp_path)
    assert json.loads((tmp_path / "latest" / "run.json").read_text())["step"] == 6
    assert not (tmp_path / "previous").exists()


def test_the_checkpoint_stands_before_the_last_measurement(
    target: Target, documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("dflash2_core.training.loop.evaluate", fails)
    settings = replace(SETTINGS, save_every=0)
    with pytest.raises(MemoryError):
        list(train(new_drafter(drafter_config(), 0), target, documents, documents, settings, tmp_path))
    assert (tmp_path / "latest" / "weights.safetensors").is_file()


def answered(target: Target, prompts: Path, kept_in: Path, **changes: Any) -> list[Document]:
    documents: list[Document] = []
    asked = Responses(**({"prompts": prompts, "temperatures": (0.0,), "max_new_tokens": 6} | changes))
    list(documents_for(target, asked, kept_in, documents))
    return documents


def test_responses_are_read_again_only_if_they_are_the_ones_asked_for(tmp_path: Path) -> None:
    prompts, kept_in = tmp_path / "p.jsonl", tmp_path / "kept.safetensors"
    prompts.write_text('{"token_ids": [1, 2]}\n{"token_ids": [3]}\n')
    target = toy_target()
    documents = answered(target, prompts, kept_in)
    moved = shutil.copy(prompts, tmp_path / "elsewhere.jsonl")
    assert answered(target, moved, kept_in) == documents
    for reason, other in (
        (
            "prompts",
            lambda: (prompts.write_text('{"token_ids": [9, 8]}\n{"token_ids": [3]}\n'), answered(target, prompts, kept_in)),
        ),
        ("target", lambda: answered(toy_target(seed=1), moved, kept_in)),
        ("max_new_tokens", lambda: answered(target, moved, kept_in, max_new_tokens=7)),
        ("seed", lambda: answered(target, moved, kept_in, seed=5)),
    ):
        with pytest.raises(Dflash2Error, match=f"differ .* in {reason}"):
            other()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("p.json", "null", "expected a list"),
        ("p.json", "5", "expected a list"),
        ("p.jsonl", "[1, 2]", "expected an object"),
        ("p.jsonl", '{"token_ids": "123"}', "not a list of integers"),
        ("p.jsonl", '{"token_ids": [1.9]}', "entry 1"),
        ("p.jsonl", '{"token_ids": [true]}', "not a list of integers"),
        ("p.jsonl", '{"text": 5}', "text is not a string|no tokenizer"),
    ],
)
def test_a_prompt_of_another_kind_is_named(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(Dflash2Error, match=sentence):
        read_prompts(tmp_path / name, None)


def test_a_line_of_json_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"note": "a\u2028b\u0085c\x7f", "token_ids": [1]}\n', encoding="utf-8")
    assert read_prompts(path, None) == [[1]]


@pytest.mark.parametrize("prompt", [[37], [-1], list(range(30))], ids=["past", "negative", "too long"])
def test_a_prompt_that_the_target_cannot_read_is_refused(prompt: list[int]) -> None:
    target = toy_target(max_position_embeddings=16)
    with pytest.raises(Dflash2Error, match="prompt 2 has"):
        list(regenerate(target, [[1], prompt], temperatures=[0.0], max_new_tokens=4, batch_size=2, seed=0))


def test_a_response_ends_where_the_targets_context_does() -> None:
    target = toy_target(max_position_embeddings=16)
    documents = list(regenerate(target, [[1] * 13, [2]], temperatures=[0.0], max_new_tokens=9, batch_size=2, seed=0))
    assert sorted(len(d.tokens) for d in documents if d.tokens[-1] != 34) <= [10, 16]
    assert max(len(d.tokens) for d in documents) <= 16


SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
SCALED = {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0}
OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=37, n_embd=16, n_layer=4, n_head=2, n_positions=64)),
    "Phi": lambda: PhiForCausalLM(PhiConfig(**SMALL)),
    "Gemma 3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=8)),
    "Llama, scaled rope": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=SCALED)),
}
SHAPE = Shape(mask_token_id=MASK, conv_group_size=4, selector_top_k=5)


@pytest.mark.parametrize("kind", OTHERS)
def test_any_hugging_face_target_can_have_a_drafter(kind: str) -> None:
    model = OTHERS[kind]().eval()
    randomise(model, seed=1, scale=0.4)
    target = Target(model)
    prompts = [[1, 2, 3], [4, 5]]
    documents = list(regenerate(target, prompts, temperatures=[1.0], max_new_tokens=12, batch_size=2, seed=0))
    drafter = new_drafter(config_for(target, SHAPE), 0)
    records = list(train(drafter, target, documents, documents, replace(SETTINGS, steps=2)))
    assert records[-1]["heldout"]["acceptance_length"] >= 1
    with pytest.raises(ConfigError, match="cannot begin with the target's layers"):
        copy_from_target(drafter, target)


def test_a_targets_scaled_rope_is_its_drafters_too() -> None:
    config = config_for(Target(OTHERS["Llama, scaled rope"]()), SHAPE)
    assert dict(config.rope_parameters) == SCALED


def test_more_layers_than_the_target_has_are_not_copied(target: Target) -> None:
    with pytest.raises(ConfigError, match="it has 7 and the target 6"):
        copy_from_target(new_drafter(config_for(target, replace(SHAPE, layers=7)), 0), target)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_target_of_low_precision_can_be_learnt_from(autocast: bool, documents: list[Document]) -> None:
    target = Target(toy_model().bfloat16())
    drafter = new_drafter(drafter_config(), 0)
    records = list(train(drafter, target, documents, documents, replace(SETTINGS, autocast=autocast)))
    assert records[-1]["heldout"]["acceptance_length"] >= 1
    assert all(p.dtype == torch.float32 for p in drafter.parameters())


def test_many_anchors_are_measured_as_few_are(
    target: Target, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = new_drafter(drafter_config(), 0)
    whole = evaluate(drafter, target, documents)
    monkeypatch.setattr("dflash2_core.training.evaluation.ANCHORS_AT_ONCE", 5)
    assert evaluate(drafter, target, documents) == whole
