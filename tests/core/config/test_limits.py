"""What cannot be a drafter is refused before anything is allocated for it."""

import tracemalloc
from typing import Any

import pytest

from dflash2_core.config import DrafterConfig, limits
from dflash2_core.errors import ConfigError
from tests.core.config.published import TOY, changed
from tests.core.toys import drafter_config


def own(**changes: Any) -> dict[str, Any]:
    return changed(TOY, dflash_config=changes)


@pytest.mark.parametrize(
    ("taps", "reason"),
    [
        ([5], "last layer"),
        ([0, 5], "last layer"),
        ([-1], "counted from 0"),
        ([6], "the target has 6 layers"),
        ([2, 2], "twice"),
        ([], "expected 1 to"),
        ([10**30], "expected 1 to"),
        ([0, 1.5], "an integer"),
        ([True], "an integer"),
        ("0,2", "a list of integers"),
        ({"0": 1}, "a list of integers"),
        (list(range(100_000)), "expected 1 to"),
    ],
)
def test_taps_that_cannot_be_meant_are_refused_with_the_reason(taps: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"target_layer_ids.*{reason}"):
        DrafterConfig.from_dict(own(target_layer_ids=taps))


@pytest.mark.parametrize("taps", [[0], [4], [0, 2, 4], [4, 0, 2], [0, 1, 2, 3, 4]])
def test_taps_from_the_first_to_the_last_but_one_are_kept_in_their_order(taps: list[int]) -> None:
    assert DrafterConfig.from_dict(own(target_layer_ids=taps)).target_layer_ids == tuple(taps)


@pytest.mark.parametrize(
    ("mask", "reason"), [(37, "no embedding"), (35, "eos_token_id"), (34, "pad_token_id"), (-1, "an integer from 0")]
)
def test_a_mask_token_that_cannot_be_one_is_refused(mask: int, reason: str) -> None:
    """T-MASK."""
    with pytest.raises(ConfigError, match=f"mask_token_id.*{reason}"):
        DrafterConfig.from_dict(own(mask_token_id=mask))


def test_a_mask_among_several_end_tokens_is_refused() -> None:
    assert DrafterConfig.from_dict(changed(TOY, eos_token_id=[33, 32])).eos_token_ids == (33, 32)
    with pytest.raises(ConfigError, match="eos_token_id"):
        DrafterConfig.from_dict(changed(TOY, eos_token_id=[33, 36]))


def test_a_mask_that_the_target_also_emits_is_fine() -> None:
    assert DrafterConfig.from_dict(own(mask_token_id=5)).mask_token_id == 5


@pytest.mark.parametrize("size", [1, 0, -8, 1025, 2**31, 10**40, 8.0, "8", True, [8]])
def test_a_block_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        DrafterConfig.from_dict(own(block_size=size))


@pytest.mark.parametrize("size", [2, 3, 8, 16, 1024])
def test_any_block_from_two_rows_on_drafts_one_token_less(size: int) -> None:
    assert DrafterConfig.from_dict(own(block_size=size)).num_drafts == size - 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"selector_top_k": 38}, "selector_top_k is 38 but vocab_size is 37"),
        ({"conv_group_size": 5}, "conv_group_size 5 does not divide hidden_size 16"),
        ({"selector_rank": 0}, "selector_rank"),
        ({"conv_kernel_size": 0}, "conv_kernel_size"),
        ({"output_multiplier": 0.0}, "output_multiplier"),
        ({"input_embedding_scale": -1.0}, "input_embedding_scale"),
        ({"final_logit_softcapping": -30.0}, "final_logit_softcapping"),
        ({"output_multiplier": float("nan")}, "output_multiplier"),
        ({"output_multiplier": float("inf")}, "output_multiplier"),
        ({"output_multiplier": 10**400}, "output_multiplier"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DrafterConfig.from_dict(own(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"head_dim": 7}, "even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has 1 entries but num_hidden_layers is 2"),
        ({"layer_types": ["sliding_attention", "linear_attention"]}, "linear_attention"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": 2**40}, "sliding_window"),
        ({"layer_types": None, "max_window_layers": -7}, "max_window_layers: expected an integer from 0, found -7"),
        ({"max_window_layers": -1}, "max_window_layers: expected an integer from 0, found -1"),
        ({"bos_token_id": -1}, "bos_token_id is -1: expected an id from 0"),
        ({"eos_token_id": [-3]}, "eos_token_id is -3: expected an id from 0"),
        ({"eos_token_id": [35, -3]}, "eos_token_id is -3: expected an id from 0"),
        ({"pad_token_id": -1}, "pad_token_id is -1: expected an id from 0"),
    ],
)
def test_layers_that_do_not_fit_together_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DrafterConfig.from_dict(changed(TOY, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 2**31, "layer_types": None},
        {"vocab_size": 10**12},
        {"hidden_size": 2**31},
        {"num_attention_heads": 2**20},
        {"hidden_size": 2**18, "intermediate_size": 2**20, "num_hidden_layers": 512, "layer_types": None},
    ],
)
def test_absurd_sizes_are_refused_without_memory(changes: dict[str, Any]) -> None:
    """T-SEC. What Python's own objects take: a config holds no tensors (for those of a window see the drafter's context)."""
    mapping = changed(TOY, max_window_layers=1, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            DrafterConfig.from_dict(mapping)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_laws_hold_for_a_config_built_in_code_too() -> None:
    for changes in ({"target_layer_ids": (5,)}, {"mask_token_id": 40}, {"layer_causal": (False,)}, {"version": 3}):
        with pytest.raises(ConfigError):
            drafter_config(**changes)
    with pytest.raises(ConfigError, match="different windows"):
        drafter_config(layer_windows=(4, 8))


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("rope", "reason"),
    [
        (YARN | {"beta_fast": "x"}, "rope_parameters.beta_fast is 'x': expected a positive number"),
        (YARN | {"mscale": True}, "rope_parameters.mscale is True"),
        (YARN | {"attention_factor": -1.0}, "rope_parameters.attention_factor is -1.0"),
        (YARN | {"truncate": 1}, "rope_parameters.truncate is 1: expected true or false"),
        (YARN | {"factor": None}, "rope_parameters.factor is None"),
        ({"rope_type": ["yarn"]}, "rope_type is \\['yarn'\\]"),
        (None, "rope_parameters is None: expected an object"),
    ],
)
def test_rope_parameters_built_in_code_are_refused_in_a_sentence(rope: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        drafter_config(rope_parameters=rope)


def test_equal_configs_have_equal_hashes() -> None:
    one, same = DrafterConfig.from_dict(TOY), DrafterConfig.from_dict(TOY)
    other = DrafterConfig.from_dict(changed(TOY, rms_norm_eps=1e-5))
    scaled = DrafterConfig.from_dict(changed(TOY, rope_parameters=YARN))
    assert hash(one) == hash(same)
    assert len({one, same, other, scaled}) == 3


LAWS: dict[str, tuple[str, Any]] = {
    "taps": ("_tap_problems", lambda: test_taps_that_cannot_be_meant_are_refused_with_the_reason([0, 5], "last layer")),
    "the mask": ("_token_problems", lambda: test_a_mask_token_that_cannot_be_one_is_refused(35, "eos_token_id")),
    "top-k": (
        "_token_problems",
        lambda: test_parts_that_do_not_fit_together_are_refused({"selector_top_k": 38}, "selector_top_k is 38"),
    ),
    "groups": (
        "_shape_problems",
        lambda: test_parts_that_do_not_fit_together_are_refused({"conv_group_size": 5}, "conv_group_size 5"),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_law_that_nobody_keeps_is_seen(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, check = LAWS[law]
    monkeypatch.setattr(limits, name, lambda config: ())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check()


def test_sizes_without_a_ceiling_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIZES", {name: (low, 2**62) for name, (low, _) in limits.SIZES.items()})
    monkeypatch.setattr(limits, "MAX_PARAMETERS", 2**124)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_absurd_sizes_are_refused_without_memory({"vocab_size": 10**12})
