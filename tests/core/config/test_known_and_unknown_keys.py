"""Every key is consumed or refused by name, and one version never passes for the other."""

from typing import Any

import pytest

from dflash2_core.config import DrafterConfig, keys, limits, zlab
from dflash2_core.errors import ConfigError
from tests.core.config.published import FIRST_VERSION, TOY, changed

SECOND_VERSION_KEYS = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 7, "selector_top_k": 5}


@pytest.mark.parametrize("place", ["top", "nested"])
@pytest.mark.parametrize("key", ["blocksize", "selector_topk", "attention_value_scale", "norm_before_fc"])
def test_a_key_nobody_knows_is_refused_by_name(place: str, key: str) -> None:
    mapping = changed(TOY, **({key: 3} if place == "top" else {"dflash_config": {key: 3}}))
    with pytest.raises(ConfigError, match=f"{key} is a key this project does not know"):
        DrafterConfig.from_dict(mapping)


def test_a_reader_that_lets_unknown_keys_pass_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(zlab, "refuse_unread", lambda reader: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_key_nobody_knows_is_refused_by_name("top", "blocksize")


@pytest.mark.parametrize("key", ["dtype", "initializer_range", "use_cache", "surprise"])
def test_bookkeeping_has_no_place_inside_dflash_config(key: str) -> None:
    with pytest.raises(ConfigError, match=f"dflash_config.{key}"):
        DrafterConfig.from_dict(changed(TOY, dflash_config={key: 1}))


def test_bookkeeping_of_the_library_changes_nothing() -> None:
    noise = {
        "transformers_version": "5.24.0",
        "_name_or_path": "somewhere",
        "torch_dtype": "bfloat16",
        "initializer_range": 0.01,
        "use_cache": False,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
        "id2label": {"0": "LABEL_0"},
    }
    assert DrafterConfig.from_dict(changed(TOY, **noise)) == DrafterConfig.from_dict(TOY)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("auto_map", {"AutoModel": "modeling.Drafter"}),
        ("auto_map", {"": "config.DFlash2SpeculatorConfig"}),
        ("auto_map", ["x"]),
        ("trust_remote_code", True),
        ("sample_from_anchor", True),
        ("partial_rotary_factor", 0.5),
        ("is_neox_style", False),
        ("add_swa_attention_sink_bias", True),
        ("use_aux_hidden_state", False),
        ("quantization_config", {"quant_method": "gptq"}),
        ("is_encoder_decoder", True),
        ("pruned_heads", {"0": [1, 2]}),
        ("attention_bias", 0),
    ],
)
def test_a_key_that_asks_for_what_is_not_done_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} is .*not supported"):
        DrafterConfig.from_dict(changed(TOY, **{key: value}))


@pytest.mark.parametrize("key", ["sample_from_anchor", "attention_sink_bias", "use_aux_hidden_state"])
def test_so_it_is_inside_dflash_config(key: str) -> None:
    neutral, _ = keys.INERT[key]
    assert DrafterConfig.from_dict(changed(TOY, dflash_config={key: neutral})) == DrafterConfig.from_dict(TOY)
    with pytest.raises(ConfigError, match=f"dflash_config.{key} is .*not supported"):
        DrafterConfig.from_dict(changed(TOY, dflash_config={key: not neutral}))


@pytest.mark.parametrize("key", keys.INERT)
def test_its_neutral_value_is_accepted(key: str) -> None:
    neutral, _ = keys.INERT[key]
    assert DrafterConfig.from_dict(changed(TOY, **{key: neutral})) == DrafterConfig.from_dict(TOY)


@pytest.mark.parametrize("key", SECOND_VERSION_KEYS)
def test_the_second_version_never_runs_as_the_first(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} missing.*never runs as DFlash 1"):
        DrafterConfig.from_dict(changed(TOY, dflash_config={key: None}))


@pytest.mark.parametrize("key", SECOND_VERSION_KEYS)
def test_the_first_version_with_a_key_of_the_second_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"declared as DFlash 1 but has {key}"):
        DrafterConfig.from_dict(changed(FIRST_VERSION, dflash_config={key: SECOND_VERSION_KEYS[key]}))


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ["LlamaForCausalLM"], "surprise": 1},
    ],
)
def test_a_targets_config_is_named_for_what_it_is(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"config of another model.*expected a DFlash drafter") as error:
        DrafterConfig.from_dict(changed(TOY, dflash_config=None, **changes))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "architectures",
    [["DFlash3DraftModel"], ["DFlashDraftModel", "DFlash2DraftModel"], [], "DFlash2DraftModel", [2], ["DFlash2DraftModel"] * 2],
)
def test_an_architecture_that_is_neither_version_is_refused(architectures: object) -> None:
    with pytest.raises(ConfigError, match="architectures"):
        DrafterConfig.from_dict(changed(TOY, architectures=architectures))


def test_a_projector_of_the_other_version_is_refused() -> None:
    assert DrafterConfig.from_dict(changed(TOY, dflash_config={"projector_type": "dflash2"})).version == 2
    with pytest.raises(ConfigError, match="projector_type"):
        DrafterConfig.from_dict(changed(TOY, dflash_config={"projector_type": "dflash"}))


def test_layers_of_another_model_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="model_type"):
        DrafterConfig.from_dict(changed(TOY, model_type="gemma3"))


@pytest.mark.parametrize("activation", ["gelu", "relu", "SiLU", 3])
def test_an_activation_that_is_not_computed_is_refused(activation: object) -> None:
    with pytest.raises(ConfigError, match="hidden_act"):
        DrafterConfig.from_dict(changed(TOY, hidden_act=activation))


@pytest.mark.parametrize("key", ["\ud800x", "evil\x1b[2J", "two\nlines", "a\u202eb", "x" * 10_000])
@pytest.mark.parametrize("place", ["top", "dflash_config", "rope_parameters"])
def test_an_unknown_key_is_named_so_that_any_terminal_can_show_it(key: str, place: str) -> None:
    mapping = TOY | {key: 1} if place == "top" else TOY | {place: TOY[place] | {key: 1}}
    with pytest.raises(ConfigError, match="is a key this project does not know") as error:
        DrafterConfig.from_dict(mapping)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_layer_type_nobody_knows_is_named_so_too() -> None:
    with pytest.raises(ConfigError, match="layer_types holds") as error:
        DrafterConfig.from_dict(TOY | {"layer_types": ["\x1b" * 10_000] * 2})
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("key", "value"), [("auto_map", {"AutoModel": "modeling.Drafter"}), ("sample_from_anchor", True)])
def test_a_reader_that_knows_a_key_and_lets_any_value_pass_is_seen(
    key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zlab, "read_inert", lambda reader, prefix: None)
    monkeypatch.setattr(zlab, "read_bookkeeping", lambda reader, prefix: None)
    monkeypatch.setattr(zlab, "refuse_unread", lambda reader: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_key_that_asks_for_what_is_not_done_is_refused_by_name(key, value)


def test_a_second_version_that_runs_as_the_first_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant takes the version from the keys that are there instead of from what is declared."""
    monkeypatch.setattr(limits, "_version_problems", lambda config: ())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_the_second_version_never_runs_as_the_first("selector_rank")
