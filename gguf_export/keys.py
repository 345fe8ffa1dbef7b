"""A drafter's description in GGUF's keys, and back. The table of the reference, `gguf.md`.

A key that is absent means what llama.cpp takes it to mean; one that is neither known nor without effect is refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGUFValueType

from dflash2_core.config import DrafterConfig, InvalidConfigError
from dflash2_core.config.limits import SECOND_VERSION_FIELDS, size
from dflash2_core.config.reading import (
    Reader,
    boolean,
    integer,
    integers,
    named,
    number,
    placed,
    shown,
    string,
)
from gguf_export.header import Header, Key
from gguf_export.names import ARCHITECTURE, PREFIX
from gguf_export.rope import read_rope, rope_keys

ATTENTION = f"{PREFIX}attention."
SECTIONS = tuple(f"{ARCHITECTURE}{section}" for section in ("", ".attention", ".rope", ".rope.scaling"))
SIZES = {
    "num_hidden_layers": f"{PREFIX}block_count",
    "max_position_embeddings": f"{PREFIX}context_length",
    "hidden_size": f"{PREFIX}embedding_length",
    "intermediate_size": f"{PREFIX}feed_forward_length",
    "num_attention_heads": f"{ATTENTION}head_count",
    "num_key_value_heads": f"{ATTENTION}head_count_kv",
    "head_dim": f"{ATTENTION}key_length",
}
SCALES = {
    "output_multiplier": f"{PREFIX}logit_scale",
    "final_logit_softcapping": f"{PREFIX}final_logit_softcapping",
    "input_embedding_scale": f"{PREFIX}embedding_scale",
}
TARGET_LAYERS = "dflash2.num_target_layers"
"""This project's own: how many layers the target has. llama.cpp passes over keys it does not know."""
TOKENS, MASK = "tokenizer.ggml.tokens", "tokenizer.ggml.mask_token_id"
BLOCK_OF_VERSION_1 = 16
"""What llama.cpp takes where a DFlash 1 file states no block size."""
KINDS = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
ITEMS = {bool: GGUFValueType.BOOL, int: GGUFValueType.INT32, str: GGUFValueType.STRING}


def key(name: str, value: Any) -> Key:
    """The key `name` in the type this format gives it: u32, f32, bool, str; lists of i32, bool, str."""
    if isinstance(value, list):
        return Key(name, GGUFValueType.ARRAY, value, ITEMS[type(value[0])])
    return Key(name, KINDS[type(value)], value)


def drafter_keys(config: DrafterConfig, *, mrope: bool) -> list[Key]:
    """Every `dflash.*` key of `config`, which `refusals` has passed. mrope: whether the target's rope has several axes."""
    values: dict[str, Any] = {place: getattr(config, field) for field, place in SIZES.items()}
    values |= {f"{ATTENTION}value_length": config.head_dim, f"{ATTENTION}layer_norm_rms_epsilon": float(config.rms_norm_eps)}
    values |= rope_keys(config, mrope=mrope)
    values |= {f"{PREFIX}block_size": config.block_size, f"{PREFIX}target_layers": [tap + 1 for tap in config.target_layer_ids]}
    if config.version == 2:
        values |= {f"{PREFIX}{field}": getattr(config, field) for field in SECOND_VERSION_FIELDS}
    values[f"{ATTENTION}causal"] = config.layer_causal[0]
    windows = [window for window in config.layer_windows if window is not None]
    if windows:
        values[f"{ATTENTION}sliding_window"] = windows[0]
        values[f"{ATTENTION}sliding_window_pattern"] = [window is not None for window in config.layer_windows]
    neutral = {"output_multiplier": 1.0, "input_embedding_scale": 1.0, "final_logit_softcapping": None}
    values |= {
        place: float(getattr(config, field)) for field, place in SCALES.items() if getattr(config, field) != neutral[field]
    }
    return [key(name, value) for name, value in values.items()]


def read_config(header: Header) -> DrafterConfig:
    """The drafter that the keys of a dflash GGUF describe; ConfigError names everything that is wrong with them."""
    reader = _reader(header.keys)
    fields: dict[str, Any] = {field: reader.need(size(field), place) for field, place in SIZES.items()}
    head_dim, hidden_size, num_layers = fields["head_dim"], fields["hidden_size"], fields["num_hidden_layers"]
    second = {field: reader.value(size(field), f"{PREFIX}{field}") for field in SECOND_VERSION_FIELDS}
    is_second = any(value is not None for value in second.values()) or "selector_hidden.weight" in header.tensors
    fields |= {"version": 2 if is_second else 1, **second}
    stated = reader.value(size("block_size"), f"{PREFIX}block_size")
    fields["block_size"] = stated if is_second or stated is not None else BLOCK_OF_VERSION_1
    if fields["block_size"] is None:
        reader.problems.append(f"{PREFIX}block_size is missing: DFlash 2 needs it")
    inputs = reader.need(integers, f"{PREFIX}target_layers")
    fields["target_layer_ids"] = None if inputs is None else tuple(layer - 1 for layer in inputs)
    fields["rms_norm_eps"] = reader.need(number, f"{ATTENTION}layer_norm_rms_epsilon")
    fields["rope_parameters"] = read_rope(reader, head_dim)
    fields |= _read_layers(reader, num_layers)
    scales = {field: reader.value(number, place) for field, place in SCALES.items()}
    fields |= {field: value for field, value in scales.items() if value}  # 0 says none, as in llama.cpp
    fields["hidden_act"] = reader.value(string, f"{PREFIX}hidden_activation") or "silu"
    fields["target_hidden_size"] = hidden_size
    fields |= _read_tokens(header, reader)
    fields["num_target_layers"] = header.value(TARGET_LAYERS)
    _refuse_other_values(reader, {f"{ATTENTION}value_length": head_dim, f"{PREFIX}vocab_size": fields["vocab_size"]})
    if head_dim is not None:
        _refuse_other_values(reader, {f"{ATTENTION}scale": head_dim**-0.5, f"{ATTENTION}value_scale": 1.0})
    reader.problems += [
        f"{named(path)} is a key this project does not know: the drafter would be run as something else"
        for path in reader.unread()
    ]
    if reader.problems:
        raise InvalidConfigError(reader.problems, where=placed(header.path))
    try:
        return DrafterConfig(**fields)
    except InvalidConfigError as error:
        raise InvalidConfigError(error.problems, where=placed(header.path)) from None


def _reader(keys: Mapping[str, Key]) -> Reader:
    """Over the `dflash.*` keys, floats as the shortest decimals that are the same in float32."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, found in keys.items():
        section, _, last = name.rpartition(".")
        if section in sections:
            sections[section][last] = _plain(found)
        elif name.startswith(PREFIX):
            sections[ARCHITECTURE][name.removeprefix(PREFIX)] = _plain(found)
    reader = Reader({})
    for section, values in sections.items():
        reader.open(section, values)
    return reader


def _plain(found: Key) -> Any:
    if found.kind == GGUFValueType.FLOAT32:
        return float(str(np.float32(found.value)))
    return found.value


def _read_layers(reader: Reader, num_layers: int | None) -> dict[str, Any]:
    causal = bool(reader.value(boolean, f"{ATTENTION}causal"))
    window = reader.value(integer, f"{ATTENTION}sliding_window") or None
    pattern = reader.raw(f"{ATTENTION}sliding_window_pattern")
    if num_layers is None:
        return {"layer_windows": (), "layer_causal": ()}
    slides = [False] * num_layers
    if window is not None:
        if isinstance(pattern, list) and len(pattern) == num_layers and all(isinstance(slide, bool) for slide in pattern):
            slides = pattern
        else:
            reader.problems.append(
                f"{ATTENTION}sliding_window_pattern is {shown(pattern)}: with a window it has to say of each of the "
                f"{num_layers} layers whether it slides"
            )
    return {
        "layer_windows": tuple(window if slide else None for slide in slides),
        "layer_causal": (causal,) * num_layers,
    }


def _read_tokens(header: Header, reader: Reader) -> dict[str, Any]:
    """What a drafter's config needs of the tokenizer that came with it."""
    tokens, mask = header.value(TOKENS), header.value(MASK)
    if not isinstance(tokens, list):
        reader.problems.append(f"{TOKENS} is missing: the vocabulary's size is that of its list")
    if not isinstance(mask, int) or isinstance(mask, bool):
        reader.problems.append(f"{MASK} is {shown(mask)}: without a mask token nothing can be drafted")
    eos, eot = (header.value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return {
        "vocab_size": len(tokens) if isinstance(tokens, list) else None,
        "mask_token_id": mask,
        "bos_token_id": header.value("tokenizer.ggml.bos_token_id"),
        "eos_token_ids": tuple(token for token in (eos, None if eot == eos else eot) if token is not None),
        "pad_token_id": header.value("tokenizer.ggml.padding_token_id"),
    }


def _refuse_other_values(reader: Reader, neutral: Mapping[str, float | None]) -> None:
    for place, expected in neutral.items():
        found = reader.value(number, place)
        if found is not None and expected is not None and not math.isclose(found, expected, rel_tol=1e-6):
            reader.problems.append(f"{place} is {found}: not supported, expected {expected} or nothing")
