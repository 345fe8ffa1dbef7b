"""T-ROPE, in the file: one base and one scaling, from either generation of keys."""

from typing import Any

import pytest

from dflash2_core.config import DrafterConfig
from dflash2_core.errors import ConfigError
from tests.core.config.published import TOY, changed

BARE = changed(TOY, rope_parameters=None)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 32, "truncate": False}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def rope_of(**keys: Any) -> dict[str, Any]:
    return DrafterConfig.from_dict(changed(BARE, **keys)).rope_parameters


def test_the_base_is_read_from_either_place() -> None:
    expected = {"rope_type": "default", "rope_theta": 5e5}
    assert rope_of(rope_theta=500000) == expected
    assert rope_of(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}) == expected
    assert rope_of(rope_parameters={"rope_theta": 5e5}, rope_theta=5e5) == expected


def test_two_bases_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError, match=r"rope_parameters\.rope_theta is 10000\.0 but rope_theta is 500000\.0"):
        rope_of(rope_parameters={"rope_theta": 1e4}, rope_theta=5e5)


@pytest.mark.parametrize("keys", [{}, {"rope_parameters": {"rope_type": "default"}}, {"rope_scaling": YARN}])
def test_no_base_is_an_error_that_names_it(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="rope_theta is missing"):
        rope_of(**keys)


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "linear", "factor": 4.0}, YARN, LLAMA3], ids=lambda scaling: scaling["rope_type"]
)
def test_a_scaling_is_the_same_from_the_old_key_and_from_the_new(scaling: dict[str, Any]) -> None:
    new = rope_of(rope_parameters=scaling | {"rope_theta": 1e4})
    old = rope_of(rope_scaling=scaling, rope_theta=1e4)
    oldest = rope_of(rope_scaling={("type" if k == "rope_type" else k): v for k, v in scaling.items()}, rope_theta=1e4)
    assert new == old == oldest == scaling | {"rope_theta": 1e4}


def test_both_generations_have_to_agree() -> None:
    scaled = YARN | {"rope_theta": 1e4}
    assert rope_of(rope_parameters=scaled, rope_scaling=YARN) == scaled
    with pytest.raises(ConfigError, match="rope_parameters.factor is 4.0 but rope_scaling.factor is 2.0"):
        rope_of(rope_parameters=scaled, rope_scaling=YARN | {"factor": 2.0})
    with pytest.raises(ConfigError, match="rope_type"):
        rope_of(rope_parameters=scaled, rope_scaling={"type": "linear", "factor": 4.0})


def test_yarn_without_its_original_length_takes_the_configs_as_transformers_does() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    assert rope_of(rope_parameters=yarn)["original_max_position_embeddings"] == TOY["max_position_embeddings"]


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "proportional", "mrope", "DEFAULT"])
def test_a_scaling_that_is_not_computed_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"rope_type is '{kind}': supported are default, linear, yarn, llama3"):
        rope_of(rope_parameters={"rope_type": kind, "rope_theta": 1e4})


@pytest.mark.parametrize("key", [key for key in LLAMA3 if key != "rope_type"])
def test_a_key_missing_from_a_scaling_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        rope_of(rope_parameters={k: v for k, v in LLAMA3.items() if k != key} | {"rope_theta": 1e4})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": "4"}, "factor"),
        ({"rope_type": "default", "factor": 2.0}, "rope_parameters.factor is a key"),
        ({"rope_type": "linear", "factor": 4.0, "short_factor": [1]}, "short_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta"),
        ({"rope_type": "default", "rope_theta": 1.0}, "rope_theta"),
        ({"rope_type": "default", "rope_theta": 1e30}, "rope_theta"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "high_freq_factor"),
        (YARN | {"beta_fast": -1}, "beta_fast"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        rope_of(rope_parameters={"rope_theta": 1e4} | keys)


def test_rope_by_layer_type_is_one_rope_when_all_types_agree() -> None:
    one = {"rope_type": "default", "rope_theta": 1e4}
    assert rope_of(rope_parameters={"sliding_attention": one, "full_attention": one}) == one
    assert rope_of(rope_parameters={"sliding_attention": one}) == one
    with pytest.raises(ConfigError, match="sliding_attention is"):
        rope_of(rope_parameters={"sliding_attention": one, "full_attention": one | {"rope_theta": 1e6}})
    with pytest.raises(ConfigError, match="stands beside parameters by layer type"):
        rope_of(rope_parameters={"sliding_attention": one, "rope_theta": 1e6})


def test_the_axes_of_multimodal_rope_are_kept_when_they_cover_the_head() -> None:
    mrope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    assert rope_of(rope_parameters=mrope)["mrope_section"] == (2, 1, 1)
    config = DrafterConfig.from_dict(changed(BARE, rope_parameters=mrope))
    assert DrafterConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="mrope_section"):
        rope_of(rope_parameters=mrope | {"mrope_section": [1, 1, 1]})
