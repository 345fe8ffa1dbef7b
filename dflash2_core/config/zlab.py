"""config.json as z-lab / Inco checkpoints write it: a flat Qwen3 config and `dflash_config` (reference, section 7).

A drafter's own keys may stand in `dflash_config` or at the top level; both are read, and have to agree.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dflash2_core.config.attention import attention_keys, default_causality, read_windows
from dflash2_core.config.keys import read_bookkeeping, read_inert, refuse_unread
from dflash2_core.config.limits import SECOND_VERSION_FIELDS, size
from dflash2_core.config.reading import (
    Reader,
    boolean,
    integer,
    integer_or_integers,
    integers,
    number,
    shown,
    string,
    strings,
)
from dflash2_core.config.rope import read_rope
from dflash2_core.errors import ConfigError

if TYPE_CHECKING:
    from dflash2_core.config.drafter import DrafterConfig

VERSIONS = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2}
ARCHITECTURES = {version: name for name, version in VERSIONS.items()}
PROJECTORS = {"dflash": 1, "dflash2": 2}
BODY_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
SCALES = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": None}
"""Field -> the value that changes nothing, which is not written."""


def read(mapping: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Fields of a DrafterConfig, None when one could not be read; and every problem found."""
    reader = Reader(mapping)
    reader.section("dflash_config")
    values = {
        "version": read_version(reader),
        "block_size": reader.need(size("block_size"), *_either("block_size")),
        "mask_token_id": reader.need(size("mask_token_id"), *_either("mask_token_id")),
        "target_layer_ids": reader.need(integers, *_either("target_layer_ids")),
        **read_body(reader, ""),
    }
    optional: dict[str, Any] = {
        name: reader.value(size(name), *_either(name)) for name in (*SECOND_VERSION_FIELDS, "num_target_layers")
    }
    optional |= read_scales(reader, _either)
    optional |= read_tokens(reader, "")
    hidden = reader.value(size("target_hidden_size"), *_either("target_hidden_size"))
    values["target_hidden_size"] = hidden if hidden is not None else values["hidden_size"]
    values |= _read_layers(reader, values["num_hidden_layers"])
    read_bookkeeping(reader, "")
    read_inert(reader, "dflash_config.")
    refuse_unread(reader)
    if any(value is None for value in values.values()):
        return None, reader.problems
    return values | {name: value for name, value in optional.items() if value is not None}, reader.problems


def _either(key: str) -> tuple[str, str]:
    return f"dflash_config.{key}", key


def read_version(reader: Reader) -> int | None:
    """1 or 2, as `architectures` declares; other models are told apart by name."""
    names = reader.need(strings, "architectures")
    projector = reader.value(string, *_either("projector_type"))
    if names is None:
        return None
    declared = {VERSIONS[name] for name in names if name in VERSIONS}
    if len(declared) != 1 or len(names) != 1:
        reader.problems.append(
            f"architectures is {shown(list(names))}: expected one of {', '.join(VERSIONS)}; "
            "the folder of a target, or of another kind of drafter, is not a DFlash drafter"
        )
        return None
    version = declared.pop()
    if projector is not None and PROJECTORS.get(projector) != version:
        reader.problems.append(f"projector_type is {shown(projector)} but architectures is {names[0]}")
    return version


def read_body(reader: Reader, prefix: str) -> dict[str, Any]:
    """Sizes and rope of the Qwen3 layers, from the keys under `prefix`."""
    values: dict[str, Any] = {name: reader.need(size(name), f"{prefix}{name}") for name in BODY_SIZES}
    values["rms_norm_eps"] = reader.need(number, f"{prefix}rms_norm_eps")
    values["hidden_act"] = reader.need(string, f"{prefix}hidden_act")
    values["rope_parameters"] = read_rope(reader, prefix, values["max_position_embeddings"], values["head_dim"])
    kind = reader.value(string, f"{prefix}model_type")
    if kind not in (None, "qwen3"):
        reader.problems.append(f"{prefix}model_type is {shown(kind)}: the layers of a DFlash drafter are those of qwen3")
    return values


def read_scales(reader: Reader, places: Callable[[str], tuple[str, ...]]) -> dict[str, Any]:
    """What multiplies or caps, from the keys in the `places` of each."""
    values: dict[str, Any] = {name: reader.value(number, *places(name)) for name in SCALES}
    values["final_logit_softcapping"] = values["final_logit_softcapping"] or None  # 0 says no cap
    return values


def read_tokens(reader: Reader, *prefixes: str) -> dict[str, Any]:
    """Special tokens that the config states; the mask may be none of them."""
    return {
        "bos_token_id": reader.value(integer, *(f"{prefix}bos_token_id" for prefix in prefixes)),
        "eos_token_ids": reader.value(integer_or_integers, *(f"{prefix}eos_token_id" for prefix in prefixes)),
        "pad_token_id": reader.value(integer, *(f"{prefix}pad_token_id" for prefix in prefixes)),
    }


def _read_layers(reader: Reader, num_layers: int | None) -> dict[str, Any]:
    windows = read_windows(reader, "", num_layers)
    causal = reader.value(boolean, "is_causal", "dflash_config.is_causal", "dflash_config.causal", "causal")
    if windows is None:
        return {"layer_windows": None, "layer_causal": None}
    by_type = reader.raw("layer_types") is not None or reader.raw("dflash_config.layer_types") is not None
    by_type = by_type or not reader.value(boolean, "dflash_config.use_swa", "use_swa")
    stated = None if causal is None else (causal,) * len(windows.types)
    return {
        "layer_windows": windows.windows,
        "layer_causal": stated or default_causality(windows, by_type=by_type),
    }


def write(config: "DrafterConfig") -> dict[str, Any]:
    """The config.json of `config`."""
    own = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        **{name: getattr(config, name) for name in SECOND_VERSION_FIELDS if config.version == 2},
        **{name: getattr(config, name) for name, neutral in SCALES.items() if getattr(config, name) != neutral},
    }
    written = {
        "architectures": [ARCHITECTURES[config.version]],
        "dflash_config": own,
        **write_body(config),
        **_write_layers(config),
    }
    if config.num_target_layers is not None:
        written["num_target_layers"] = config.num_target_layers
    if config.target_hidden_size != config.hidden_size:
        written["target_hidden_size"] = config.target_hidden_size
    return written


def write_body(config: "DrafterConfig") -> dict[str, Any]:
    """The keys of the Qwen3 layers, as transformers reads them."""
    eos = config.eos_token_ids
    return {
        "model_type": "qwen3",
        **{name: getattr(config, name) for name in BODY_SIZES},
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {
            key: list(value) if isinstance(value, tuple) else value for key, value in config.rope_parameters.items()
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": (eos[0] if len(eos) == 1 else list(eos)) if eos else None,
        "pad_token_id": config.pad_token_id,
    }


def _write_layers(config: "DrafterConfig") -> dict[str, Any]:
    try:
        return attention_keys(config.layer_windows, config.layer_causal)
    except ValueError as error:
        raise ConfigError(f"this drafter cannot be written in the z-lab layout: {error}") from None
