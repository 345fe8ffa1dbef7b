"""Whatever a config.json holds, the answer is a drafter or a Dflash2Error."""

import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash2_core.config import DrafterConfig
from dflash2_core.errors import ConfigError, Dflash2Error
from tests.core.config.published import FIRST_VERSION, TOY
from tests.core.config.strategies import configs
from tests.core.config.test_speculators_layout import SAVED_BY_THE_PACKAGE

garbage = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 50),
        st.sampled_from([2**31, 2**63, -(2**70), 10**400, 10**4000, float("nan"), float("inf"), 1e308, 0.5, ""]),
        st.text(max_size=8),
        st.sampled_from(["sliding_attention", "full_attention", "yarn", "dflash2", "DFlash2DraftModel"]),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def sections_of(mapping: dict[str, Any]) -> list[dict[str, Any]]:
    nested = [value for value in mapping.values() if isinstance(value, dict)]
    return [mapping, *nested, *(inner for value in nested for inner in value.values() if isinstance(inner, dict))]


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with keys dropped, replaced by garbage, added, or moved to another section."""
    mapping = deepcopy(draw(st.sampled_from([TOY, FIRST_VERSION, SAVED_BY_THE_PACKAGE])))
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from(sections_of(mapping)))
        key = draw(st.sampled_from(sorted(section) or ["block_size"]))
        match draw(st.sampled_from(["drop", "replace", "move", "add"])):
            case "drop":
                section.pop(key, None)
            case "replace":
                section[key] = draw(garbage)
            case "move":
                draw(st.sampled_from(sections_of(mapping)))[key] = section.get(key)
            case "add":
                section[draw(st.text(max_size=8))] = draw(garbage)
    return mapping


@settings(max_examples=250)
@given(damaged())
def test_a_damaged_config_is_read_or_refused_in_a_sentence(mapping: dict[str, Any]) -> None:
    config = None
    with suppress(Dflash2Error):
        config = DrafterConfig.from_dict(mapping)
    if config is not None:
        assert DrafterConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("mapping", [TOY, SAVED_BY_THE_PACKAGE], ids=["zlab", "speculators"])
def test_integers_too_long_to_print_are_refused_in_a_sentence(mapping: dict[str, Any]) -> None:
    for key in mapping:
        for value in (10**5000, [{"x": 10**5000}]):
            with suppress(Dflash2Error):
                DrafterConfig.from_dict(mapping | {key: value})


@given(garbage)
def test_anything_at_all_is_refused_in_a_sentence(anything: object) -> None:
    with pytest.raises(Dflash2Error):
        DrafterConfig.from_dict(anything)  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 2000), patch=st.binary(max_size=6), keep=st.booleans())
def test_a_damaged_file_is_read_or_refused_in_a_sentence(tmp_path: Path, cut: int, patch: bytes, keep: bool) -> None:
    raw = json.dumps(TOY).encode()
    file = tmp_path / "config.json"
    file.write_bytes(raw[:cut] + patch + (raw[cut + len(patch) :] if keep else b""))
    with suppress(Dflash2Error):
        DrafterConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1, 2]",
        "{",
        '{"block_size": 8, "block_size": 9}',
        "[" * 100_000,
        '{"a": ' * 50_000,
        '{"block_size": ' + "9" * 10_000 + "}",
        '{"rms_norm_eps": NaN}',
        "\ufeff{}",
        "\x00",
    ],
)
def test_a_file_that_is_no_config_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(Dflash2Error, match=r"config\.json"):
        DrafterConfig.from_pretrained(tmp_path)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Dflash2Error, match="bytes"):
        DrafterConfig.from_pretrained(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(Dflash2Error, match="does not exist"):
        DrafterConfig.from_pretrained(tmp_path / "nowhere")


@given(configs())
def test_every_valid_config_survives_its_file(config: DrafterConfig) -> None:
    written = None
    with suppress(ConfigError):  # this layout has no words for some mixtures of windows and causality
        written = config.to_dict()
    if written is not None:
        assert DrafterConfig.from_dict(json.loads(json.dumps(written))) == config


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "\udcff"])
def test_a_path_that_none_can_be_is_refused_in_a_sentence(path: str) -> None:
    with pytest.raises(ConfigError) as error:
        DrafterConfig.from_pretrained(path)
    assert str(error.value).isprintable()


def test_a_config_that_leads_out_of_its_folder_is_refused_and_one_in_a_hub_cache_is_read(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.json", tmp_path / "drafter"
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "abc", tmp_path / "cache" / "blobs"
    for made in (folder, snapshot, blobs):
        made.mkdir(parents=True)
    for place, link in ((outside, folder), (blobs / "123", snapshot)):
        place.write_text(json.dumps(TOY))
        (link / "config.json").symlink_to(place)
    for path in (folder, folder / "config.json"):
        with pytest.raises(ConfigError, match="leads out of the folder"):
            DrafterConfig.from_pretrained(path)
    assert DrafterConfig.from_pretrained(snapshot) == DrafterConfig.from_dict(TOY)
