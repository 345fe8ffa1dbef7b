"""The rotary part of a drafter in GGUF's keys, and back.

YaRN's factor on cos and sin: llama.cpp computes 1 + 0.1 ln(factor) by itself and multiplies it by `rope.scaling.attn_factor`
(its `llama-context.cpp`), where configs state the whole factor or the two magnitudes it follows from.
"""

import math
from typing import Any

from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import Reader, integer, integers, number, shown, string
from dflash2_core.drafter.rotary import inverse_frequencies
from gguf_export.names import PREFIX

ROPE = f"{PREFIX}rope."
SCALING = f"{ROPE}scaling."
YARN_BETAS = {"beta_fast": f"{SCALING}yarn_beta_fast", "beta_slow": f"{SCALING}yarn_beta_slow"}


def rope_problems(config: DrafterConfig) -> list[str]:
    """What of a drafter's rope llama.cpp has no words for."""
    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        return ["its rope is of type llama3, which a dflash GGUF cannot state: supported are default, linear, yarn"]
    if not rope.get("truncate", True):
        return ["its yarn rope has truncate false, and llama.cpp always rounds the range of its ramp to whole channels"]
    return []


def rope_keys(config: DrafterConfig, *, mrope: bool) -> dict[str, Any]:
    """Key -> value; floats are f32, ints u32, lists of ints arrays of i32.

    mrope  the target numbers its positions on several axes: then the drafter turns all channels by the first of them
    """
    rope = config.rope_parameters
    keys: dict[str, Any] = {f"{ROPE}freq_base": float(rope["rope_theta"])}
    if mrope:
        keys[f"{ROPE}dimension_sections"] = [config.head_dim // 2, 0, 0, 0]
    if rope["rope_type"] == "default":
        return keys
    keys |= {f"{SCALING}type": rope["rope_type"], f"{SCALING}factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        keys[f"{SCALING}original_context_length"] = int(original)
        scale = inverse_frequencies(config.head_dim, rope, config.max_position_embeddings)[1]
        if not math.isclose(scale, _magnitude(rope["factor"])):
            keys[f"{SCALING}attn_factor"] = scale / _magnitude(rope["factor"])
        keys |= {place: float(rope[name]) for name, place in YARN_BETAS.items() if rope.get(name) is not None}
    return keys


def read_rope(reader: Reader, head_dim: int | None) -> dict[str, Any]:
    """`rope_parameters` of the keys that `reader` holds; problems go to the reader."""
    kind = reader.value(string, f"{SCALING}type") or "default"
    rope: dict[str, Any] = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": reader.need(number, f"{ROPE}freq_base"),
    }
    _check_sections(reader, head_dim)
    if rope["rope_type"] == "default":
        return rope
    factor = rope["factor"] = reader.need(number, f"{SCALING}factor")
    if kind == "yarn":
        rope["original_max_position_embeddings"] = reader.value(integer, f"{SCALING}original_context_length")
        rope |= {name: reader.value(number, place) for name, place in YARN_BETAS.items()}
        share = reader.value(number, f"{SCALING}attn_factor")
        if share is not None and factor is not None and factor > 0:
            rope["attention_factor"] = share * _magnitude(factor)
    return {key: value for key, value in rope.items() if value is not None}


def _magnitude(factor: float) -> float:
    return 1 + 0.1 * math.log(factor)


def _check_sections(reader: Reader, head_dim: int | None) -> None:
    """With text alone all axes hold the same position, so sections change nothing as long as they cover the whole head."""
    sections = reader.value(integers, f"{ROPE}dimension_sections")
    rotated = reader.value(integer, f"{ROPE}dimension_count")
    if head_dim is None:
        return
    if sections is not None and sum(sections) not in (0, head_dim // 2):
        reader.problems.append(f"{ROPE}dimension_sections is {shown(list(sections))}: expected them to cover head_dim / 2")
    if rotated not in (None, head_dim):
        reader.problems.append(f"{ROPE}dimension_count is {rotated}: not supported, the whole head of {head_dim} is rotated")
