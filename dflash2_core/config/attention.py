"""Which keys a layer may see: windows and causality, from the many keys that speak of them, and back.

Visibility itself is section 3 of the reference: with window W a key is seen iff q - k < W and, when not causal, k - q < W.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash2_core.config.reading import Reader, boolean, integer, natural, shown, strings

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Windows:
    """types: what each layer is called; windows: what it then sees, None for everything."""

    types: tuple[str, ...]
    windows: tuple[int | None, ...]


@dataclass(frozen=True)
class _Stated:
    """What a config says about windows, None where it is silent."""

    layer_types: tuple[str, ...] | None
    use_sliding_window: bool | None
    use_swa: bool | None
    max_window_layers: int | None
    window: int | None


def read_windows(reader: Reader, prefix: str, num_layers: int | None) -> Windows | None:
    """Windows of each layer from the keys under `prefix` and in `dflash_config`; problems go to the reader."""
    stated = _Stated(
        layer_types=reader.value(strings, f"{prefix}layer_types", "dflash_config.layer_types"),
        use_sliding_window=reader.value(boolean, f"{prefix}use_sliding_window"),
        use_swa=reader.value(boolean, "dflash_config.use_swa", "use_swa"),
        max_window_layers=reader.value(natural, f"{prefix}max_window_layers"),
        window=reader.value(
            integer,
            f"{prefix}sliding_window",
            "dflash_config.sliding_window",
            "dflash_config.swa_window_size",
            "swa_window_size",
        ),
    )
    if num_layers is None:
        return None
    try:
        return _resolve(stated, num_layers)
    except ValueError as error:
        reader.problems.append(str(error))
        return None


def _resolve(stated: _Stated, num_layers: int) -> Windows:
    """Raises ValueError with a sentence when the keys contradict each other or leave the answer open."""
    enabled = _enabled(stated)
    if stated.layer_types is not None:
        types = _checked(stated, stated.layer_types, num_layers)
    elif stated.use_swa:
        types = (SLIDING,) * num_layers
    elif enabled:
        if stated.max_window_layers is None:
            raise ValueError(
                "layer_types and max_window_layers are both missing: with use_sliding_window true one of them has to "
                "say which layers slide"
            )
        types = tuple(SLIDING if i >= stated.max_window_layers else FULL for i in range(num_layers))
    else:
        types = (FULL,) * num_layers
    if enabled is None and (SLIDING in types or (stated.layer_types is None and stated.window is not None)):
        raise ValueError(
            "use_sliding_window is missing although the config speaks of a sliding window, and stacks disagree on what "
            "its absence means; state true (the window holds) or false (every layer sees the whole context)"
        )
    if enabled and SLIDING in types and stated.window is None:
        raise ValueError("sliding_window (or dflash_config.swa_window_size) is missing although layers slide")
    return Windows(types, tuple(stated.window if enabled and kind == SLIDING else None for kind in types))


def _enabled(stated: _Stated) -> bool | None:
    if None not in (stated.use_swa, stated.use_sliding_window) and stated.use_swa != stated.use_sliding_window:
        raise ValueError(f"use_sliding_window is {stated.use_sliding_window} but use_swa is {stated.use_swa}: make them agree")
    return stated.use_swa if stated.use_sliding_window is None else stated.use_sliding_window


def _checked(stated: _Stated, types: tuple[str, ...], num_layers: int) -> tuple[str, ...]:
    if unknown := sorted(set(types) - {SLIDING, FULL}):
        raise ValueError(f"layer_types holds {shown(unknown[0])}: expected {SLIDING!r} or {FULL!r}")
    if len(types) != num_layers:
        raise ValueError(f"layer_types has {len(types)} entries but num_hidden_layers is {num_layers}")
    if stated.use_swa and SLIDING not in types:
        raise ValueError("use_swa is true but layer_types names no sliding layer: make them agree")
    if stated.use_swa is False and SLIDING in types:
        raise ValueError("use_swa is false but layer_types names sliding layers: make them agree")
    return types


def default_causality(windows: Windows, *, by_type: bool) -> tuple[bool, ...]:
    """Without a key that decides: sliding layers are causal inside the block and full layers are not.

    by_type is False where no `layer_types` stood in the config and `use_swa` made every layer slide: the stack that
    writes such configs trains them non-causal.
    """
    return tuple(by_type and kind == SLIDING for kind in windows.types)


def attention_keys(windows: Sequence[int | None], causal: Sequence[bool]) -> dict[str, Any]:
    """The z-lab keys that say exactly this; ValueError where that layout has no words for it."""
    sizes = {window for window in windows if window is not None}
    slides = [window is not None for window in windows]
    keys: dict[str, Any] = {
        "sliding_window": next(iter(sizes), None),
        "use_sliding_window": bool(sizes),
        "max_window_layers": len(windows),
    }
    if len(set(causal)) == 1:
        keys["is_causal"] = causal[0]
    elif not sizes:
        # Without is_causal the layer's type decides, and use_sliding_window false lifts its window.
        slides = list(causal)
    elif slides != list(causal):
        raise ValueError(
            "this mixture of windows and causality cannot be written: without one is_causal for all layers, exactly "
            "the sliding layers are causal"
        )
    keys["layer_types"] = [SLIDING if slide else FULL for slide in slides]
    return keys
