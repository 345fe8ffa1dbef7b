"""T-SWA and T-CAUSAL, in the file: what each layer sees, from every key that speaks of it."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash2_core.config import DrafterConfig, attention, zlab
from dflash2_core.errors import ConfigError
from tests.core.config.published import TOY, changed
from tests.core.toys import drafter_config

S, F = "sliding_attention", "full_attention"
SILENT = changed(TOY, layer_types=None, use_sliding_window=None, sliding_window=None, max_window_layers=None, is_causal=None)

READINGS = {
    # what is added to a config that says nothing of windows or causality -> windows, causality of its two layers
    "nothing": ({}, (None, None), (False, False)),
    "windows off": ({"use_sliding_window": False, "sliding_window": 4}, (None, None), (False, False)),
    "both types": ({"layer_types": [S, F], "use_sliding_window": True, "sliding_window": 4}, (4, None), (True, False)),
    "all full": ({"layer_types": [F, F], "sliding_window": 4}, (None, None), (False, False)),
    "is_causal decides for all": (
        {"layer_types": [S, F], "use_sliding_window": True, "sliding_window": 4, "is_causal": True},
        (4, None),
        (True, True),
    ),
    "is_causal false": (
        {"layer_types": [S, F], "use_sliding_window": True, "sliding_window": 4, "is_causal": False},
        (4, None),
        (False, False),
    ),
    "dflash_config.causal": (
        {"layer_types": [S, S], "use_sliding_window": True, "sliding_window": 4, "dflash_config": {"causal": False}},
        (4, 4),
        (False, False),
    ),
    "use_sliding_window false lifts the window of layers still called sliding": (
        {"layer_types": [S, F], "use_sliding_window": False, "sliding_window": 4, "is_causal": False},
        (None, None),
        (False, False),
    ),
    "max_window_layers in place of types": (
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        (None, 4),
        (False, True),
    ),
    "max_window_layers is ignored beside types": (
        {"layer_types": [S, S], "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
        (4, 4),
        (True, True),
    ),
    "use_swa makes every layer slide, not causal": (
        {"dflash_config": {"use_swa": True, "swa_window_size": 4}},
        (4, 4),
        (False, False),
    ),
    "use_swa with the window at the top": ({"dflash_config": {"use_swa": True}, "sliding_window": 4}, (4, 4), (False,) * 2),
    "use_swa beside types": (
        {"dflash_config": {"use_swa": True, "swa_window_size": 4}, "layer_types": [F, S]},
        (None, 4),
        (False, True),
    ),
    "the window in both known places": (
        {"dflash_config": {"swa_window_size": 4}, "layer_types": [S, S], "use_sliding_window": True, "sliding_window": 4},
        (4, 4),
        (True, True),
    ),
}

REFUSED = {
    "two windows": (
        {"layer_types": [S, S], "use_sliding_window": True, "sliding_window": 4, "dflash_config": {"swa_window_size": 8}},
        "sliding_window is 4 but dflash_config.swa_window_size is 8",
    ),
    "no window": ({"layer_types": [S, F], "use_sliding_window": True}, "sliding_window .* is missing"),
    "types without a word on whether windows hold": (
        {"layer_types": [S, F], "sliding_window": 4},
        "use_sliding_window is missing",
    ),
    "a window without a word on whether it holds": ({"sliding_window": 4}, "use_sliding_window is missing"),
    "windows on without a word on which layers": (
        {"use_sliding_window": True, "sliding_window": 4},
        "layer_types and max_window_layers are both missing",
    ),
    "two causalities": ({"is_causal": True, "dflash_config": {"causal": False}}, "is_causal is True but .*causal is False"),
    "use_swa against use_sliding_window": (
        {"use_sliding_window": False, "dflash_config": {"use_swa": True, "swa_window_size": 4}},
        "use_sliding_window is False but use_swa is True",
    ),
    "use_swa against types": (
        {"layer_types": [F, F], "dflash_config": {"use_swa": True, "swa_window_size": 4}},
        "use_swa is true but",
    ),
    "no use_swa against types": (
        {"layer_types": [S, F], "sliding_window": 4, "dflash_config": {"use_swa": False}},
        "use_swa is false but",
    ),
    "a causality of another type": ({"is_causal": 1}, "is_causal: expected true or false"),
    "a number for a flag": ({"use_sliding_window": "yes"}, "use_sliding_window: expected true or false"),
}


@pytest.mark.parametrize("name", READINGS)
def test_windows_and_causality_are_read_from(name: str) -> None:
    keys, windows, causal = READINGS[name]
    config = DrafterConfig.from_dict(changed(SILENT, **keys))
    assert (config.layer_windows, config.layer_causal) == (windows, causal)


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_contradict_or_leave_it_open_are_refused(name: str) -> None:
    keys, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        DrafterConfig.from_dict(changed(SILENT, **keys))


def test_a_reader_that_takes_sliding_types_at_their_word_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: use_sliding_window is not asked."""
    resolve = attention._resolve

    def taking_types_at_their_word(stated: attention._Stated, num_layers: int) -> attention.Windows:
        return resolve(attention._Stated(stated.layer_types, True, None, stated.max_window_layers, stated.window), num_layers)

    monkeypatch.setattr(attention, "_resolve", taking_types_at_their_word)
    with pytest.raises(AssertionError):
        test_windows_and_causality_are_read_from("use_sliding_window false lifts the window of layers still called sliding")


def test_a_reader_that_forgets_is_causal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: causality by type alone."""
    monkeypatch.setattr(zlab, "boolean", lambda value: None)
    with pytest.raises(AssertionError):
        test_windows_and_causality_are_read_from("is_causal false")


def written_and_read(windows: tuple[int | None, ...], causal: tuple[bool, ...], layout: str) -> DrafterConfig:
    config = drafter_config(num_hidden_layers=len(windows), layer_windows=windows, layer_causal=causal)
    return DrafterConfig.from_dict(config.to_dict(layout))


layers = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@given(layers=layers, window=st.integers(1, 4096))
def test_what_a_layout_can_say_it_says_exactly_and_what_it_cannot_it_refuses(
    layout: str, layers: list[tuple[bool, bool]], window: int
) -> None:
    windows = tuple(window if slides else None for slides, _ in layers)
    causal = tuple(is_causal for _, is_causal in layers)
    drafter = drafter_config(num_hidden_layers=len(windows), layer_windows=windows, layer_causal=causal)
    written = None
    with suppress(ConfigError):
        written = drafter.to_dict(layout)
    if written is not None:
        config = DrafterConfig.from_dict(written)
        assert (config.layer_windows, config.layer_causal) == (windows, causal)


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize(
    ("windows", "causal"),
    [((8, 8), (False, False)), ((8, 8), (True, True)), ((8, None), (True, False)), ((None, None), (False, False))],
)
def test_the_kinds_of_drafters_that_exist_can_be_written(
    layout: str, windows: tuple[int | None, ...], causal: tuple[bool, ...]
) -> None:
    config = written_and_read(windows, causal, layout)
    assert (config.layer_windows, config.layer_causal) == (windows, causal)


def peers_reading(mapping: dict[str, Any]) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Windows and causality as the PyPI package `dflash` builds its layers."""
    peer = pytest.importorskip("dflash.model")
    config = peer.Qwen3Config.from_dict(mapping)
    attentions = [peer.Qwen3DFlashAttention(config, i) for i in range(config.num_hidden_layers)]
    return tuple(a.sliding_window for a in attentions), tuple(a.is_causal for a in attentions)


@pytest.mark.parametrize("types", [[S, S], [S, F], [F, F], None])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("is_causal", [True, False, None])
def test_the_peer_reads_the_same_from_the_same_keys(types: list[str] | None, enabled: bool, is_causal: bool | None) -> None:
    mapping = changed(
        SILENT,
        layer_types=types,
        use_sliding_window=enabled,
        sliding_window=4,
        max_window_layers=1,
        is_causal=is_causal,
    )
    config = DrafterConfig.from_dict(mapping)
    assert peers_reading(mapping) == (config.layer_windows, config.layer_causal)


@pytest.mark.parametrize(
    ("windows", "causal"),
    [((8, 8), (False, False)), ((8, 8), (True, True)), ((8, None), (True, False)), ((None, None), (True, False))],
)
def test_the_peer_reads_from_our_file_what_was_meant(windows: tuple[int | None, ...], causal: tuple[bool, ...]) -> None:
    config = drafter_config(layer_windows=windows, layer_causal=causal)
    assert peers_reading(config.to_dict()) == (windows, causal)
