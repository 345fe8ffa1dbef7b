"""T-CFG: a key may stand nested or at the top; two places have to agree, and none has a default."""

from typing import Any

import pytest

from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import Parse, Reader
from dflash2_core.errors import ConfigError
from tests.core.config.published import OWN_KEYS, TOY, changed

OTHER = {
    "block_size": 16,
    "conv_group_size": 8,
    "conv_kernel_size": 3,
    "mask_token_id": 33,
    "selector_rank": 9,
    "selector_top_k": 6,
    "target_layer_ids": [0, 2, 3],
}
SCALES = {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 30.0}


def value_of(mapping: dict[str, Any], key: str) -> object:
    value = getattr(DrafterConfig.from_dict(mapping), key)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_key_is_read_from_either_place(key: str) -> None:
    nested = changed(TOY, dflash_config={key: OTHER[key]})
    top = changed(TOY, dflash_config={key: None}, **{key: OTHER[key]})
    both = changed(TOY, dflash_config={key: OTHER[key]}, **{key: OTHER[key]})
    assert value_of(nested, key) == value_of(top, key) == value_of(both, key) == OTHER[key]


@pytest.mark.parametrize("key", OWN_KEYS)
def test_two_places_that_disagree_are_an_error_that_names_both(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        DrafterConfig.from_dict(changed(TOY, **{key: OTHER[key]}))
    assert f"dflash_config.{key} is" in str(error.value)
    assert f"but {key} is" in str(error.value)


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_missing_key_is_an_error_that_names_it(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        DrafterConfig.from_dict(changed(TOY, dflash_config={key: None}))


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_null_is_a_missing_key(key: str) -> None:
    mapping = changed(TOY)
    mapping["dflash_config"][key] = None
    with pytest.raises(ConfigError, match=key):
        DrafterConfig.from_dict(mapping)


@pytest.mark.parametrize(
    "key",
    [
        "architectures",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "rope_parameters",
        "sliding_window",
        "use_sliding_window",
    ],
)
def test_no_constant_stands_in_for_a_missing_key_of_the_layers(key: str) -> None:
    with pytest.raises(ConfigError, match="rope_theta" if key == "rope_parameters" else key):
        DrafterConfig.from_dict(changed(TOY, **{key: None}))


@pytest.mark.parametrize("key", SCALES)
def test_a_scale_is_read_from_either_place_and_is_neutral_when_absent(key: str) -> None:
    neutral = getattr(DrafterConfig.from_dict(TOY), key)
    assert neutral == (None if key == "final_logit_softcapping" else 1.0)
    assert value_of(changed(TOY, **{key: SCALES[key]}), key) == SCALES[key]
    assert value_of(changed(TOY, dflash_config={key: SCALES[key]}), key) == SCALES[key]
    with pytest.raises(ConfigError, match=key):
        DrafterConfig.from_dict(changed(TOY, dflash_config={key: SCALES[key]}, **{key: 3.0}))


def test_a_soft_cap_of_zero_is_no_soft_cap() -> None:
    mapping = changed(TOY, dflash_config={"final_logit_softcapping": 0.0})
    assert DrafterConfig.from_dict(mapping).final_logit_softcapping is None


def test_taps_are_never_guessed_though_the_count_would_fit() -> None:
    """T-TAPCOUNT: the known default gives three taps for this target too."""
    with pytest.raises(ConfigError, match="target_layer_ids is missing"):
        DrafterConfig.from_dict(changed(TOY, dflash_config={"target_layer_ids": None}))


def test_every_problem_is_named_at_once() -> None:
    mapping = changed(TOY, dflash_config={"block_size": None, "mask_token_id": "x"}, head_dim=None, surprise=1)
    with pytest.raises(ConfigError) as error:
        DrafterConfig.from_dict(mapping)
    assert all(name in str(error.value) for name in ("block_size", "mask_token_id", "head_dim", "surprise"))


def test_a_reader_that_takes_the_first_place_without_asking_the_other_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Reader.value

    def first(self: Reader, parse: Parse[Any], *paths: str) -> Any:
        stated = [path for path in paths if self.raw(path) is not None]
        return value(self, parse, *stated[:1])

    monkeypatch.setattr(Reader, "value", first)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_two_places_that_disagree_are_an_error_that_names_both("block_size")


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_constant_that_stands_in_for_a_missing_key_is_seen(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-TAPCOUNT among them: three taps are what `fc` has room for."""
    read = {name: getattr(Reader, name) for name in ("need", "value")}

    def standing_in(name: str) -> Any:
        def reading(self: Reader, parse: Parse[Any], *paths: str) -> Any:
            if paths == (f"dflash_config.{key}", key) and not any(self.raw(path) is not None for path in paths):
                return parse(OTHER[key])
            return read[name](self, parse, *paths)

        return reading

    for name in read:
        monkeypatch.setattr(Reader, name, standing_in(name))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_missing_key_is_an_error_that_names_it(key)
