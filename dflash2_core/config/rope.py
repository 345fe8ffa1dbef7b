"""Rotary parameters, from both generations of keys: `rope_parameters`, or `rope_theta` with `rope_scaling`."""

from collections.abc import Mapping
from typing import Any

from dflash2_core.config.attention import FULL, SLIDING
from dflash2_core.config.reading import Reader, boolean, integer, integers, mapping, named, number, shown, string

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
OPTIONAL = {
    "yarn": (
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
TYPED = {
    "original_max_position_embeddings": integer,
    "truncate": boolean,
}
SECTIONS = ("rope_parameters", "rope_scaling")


def read_rope(reader: Reader, prefix: str, max_positions: int | None, head_dim: int | None) -> dict[str, Any] | None:
    """`rope_type`, `rope_theta` and the keys of that type; None when problems went to the reader."""
    sections = [f"{prefix}{name}" for name in SECTIONS if _open(reader, f"{prefix}{name}")]
    before = len(reader.problems)
    theta = reader.need(number, *(f"{path}.rope_theta" for path in sections), f"{prefix}rope_theta")
    _refuse_partial(reader, sections)
    kinds = [path for section in sections for path in (f"{section}.rope_type", f"{section}.type")]
    kind = reader.value(string, *kinds) or "default"
    if kind not in NEEDED:
        reader.problems.append(f"{kinds[0] if kinds else 'rope_type'} is {shown(kind)}: supported are {', '.join(NEEDED)}")
        return None
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    for key in NEEDED[kind]:
        rope[key] = reader.need(TYPED.get(key, number), *(f"{path}.{key}" for path in sections))
    for key in OPTIONAL.get(kind, ()):
        rope[key] = reader.value(TYPED.get(key, number), *(f"{path}.{key}" for path in sections))
    if kind == "yarn" and rope["original_max_position_embeddings"] is None:
        rope["original_max_position_embeddings"] = max_positions  # what transformers fills in
    rope["mrope_section"] = _read_mrope(reader, sections, head_dim)
    return None if len(reader.problems) > before else {key: value for key, value in rope.items() if value is not None}


def _open(reader: Reader, path: str) -> bool:
    """Open a rope section, looking through the per-layer-type form when every type says the same."""
    if not reader.section(path):
        return False
    kinds = [f"{path}.{kind}" for kind in (FULL, SLIDING) if reader.raw(f"{path}.{kind}") is not None]
    if kinds:
        found = reader.value(mapping, *kinds)
        for other in list(reader.unread_of(path)):
            reader.problems.append(f"{named(other)} stands beside parameters by layer type: one rope serves every layer here")
        if found is not None:
            reader.open(path, found)
    return True


def _refuse_partial(reader: Reader, sections: list[str]) -> None:
    for section in sections:
        factor = reader.value(number, f"{section}.partial_rotary_factor")
        if factor not in (None, 1.0):
            reader.problems.append(
                f"{section}.partial_rotary_factor is {factor}: not supported, since the whole head is rotated"
            )


def _read_mrope(reader: Reader, sections: list[str], head_dim: int | None) -> tuple[int, ...] | None:
    """Multi-axis rope, kept for engines: with text alone all its axes hold the same position, which is plain rope."""
    axes = reader.value(integers, *(f"{path}.mrope_section" for path in sections))
    if axes is not None and head_dim is not None and (min(axes, default=-1) < 0 or 2 * sum(axes) != head_dim):
        reader.problems.append(f"mrope_section is {shown(axes)}: its axes must cover head_dim / 2 = {head_dim // 2}")
    return axes


def rope_problems(rope: Mapping[str, Any]) -> list[str]:
    """What makes these parameters unusable, as sentences."""
    if not isinstance(rope, Mapping):
        return [f"rope_parameters is {shown(rope)}: expected an object"]
    kind = rope.get("rope_type")
    if not isinstance(kind, str) or kind not in NEEDED:
        return [f"rope_type is {shown(kind)}: supported are {', '.join(NEEDED)}"]
    stated = [key for key in OPTIONAL["yarn"] if rope.get(key) is not None]
    problems = [
        f"rope_parameters.{key} is {shown(rope.get(key))}: expected a positive number"
        for key in dict.fromkeys(("rope_theta", *NEEDED[kind], *stated))
        if key != "truncate" and not _positive(rope.get(key))
    ]
    if not isinstance(rope.get("truncate", True), bool):
        problems.append(f"rope_parameters.truncate is {shown(rope['truncate'])}: expected true or false")
    if problems:
        return problems
    if rope["rope_theta"] <= 1:
        problems.append(f"rope_theta is {rope['rope_theta']}: expected a base above 1")
    if rope.get("factor", 1) < 1:
        problems.append(f"rope_parameters.factor is {rope['factor']}: expected at least 1")
    if kind == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        problems.append("rope_parameters.high_freq_factor must be greater than low_freq_factor")
    return problems


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15
