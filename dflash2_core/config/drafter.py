"""DrafterConfig: what a drafter is, validated once and then trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from dflash2_core.config import limits, speculators, zlab
from dflash2_core.config.documents import read_object, stays_inside
from dflash2_core.config.reading import InvalidConfigError, placed, shown
from dflash2_core.config.shapes import tensor_shapes
from dflash2_core.errors import ConfigError

LAYOUTS = {"zlab": zlab, "speculators": speculators}


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """One description of a drafter, immutable; building one raises ConfigError with every law it breaks.

    target_layer_ids  taps: outputs l of target layers counted from 0, in the order of fc.weight's columns
    layer_windows     of each drafter layer: W, or None where it sees the whole context
    layer_causal      of each drafter layer: whether a row sees only earlier rows of its block
    rope_parameters   `rope_type`, `rope_theta` and the keys of that type
    conv_*, selector_*  None for DFlash 1
    num_target_layers   None where the layout does not say
    """

    version: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: dict[str, Any] = field(hash=False)  # a dict has no hash; equality compares it
    layer_windows: tuple[int | None, ...]
    layer_causal: tuple[bool, ...]
    target_hidden_size: int
    hidden_act: str = "silu"
    num_target_layers: int | None = None
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if found := list(limits.problems_of(self)):
            raise InvalidConfigError(found)

    @property
    def num_drafts(self) -> int:
        """Tokens drafted per block: row 0 holds the anchor and is not read."""
        return self.block_size - 1

    @property
    def rope_theta(self) -> float:
        return float(self.rope_parameters["rope_theta"])

    @property
    def num_parameters(self) -> int:
        """Weights of the required tensors."""
        return sum(prod(shape) for shape in tensor_shapes(self).values())

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "DrafterConfig":
        """The drafter that a config.json of either layout describes; ConfigError names everything that is wrong."""
        config, found = diagnose(mapping)
        if config is None or found:
            raise InvalidConfigError(found)
        return config

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "DrafterConfig":
        """From a checkpoint's folder or its config.json; ConfigError when there is none or it is wrong.

        A file that leads out of its folder through a link is refused, as `open_checkpoint` refuses it.
        """
        file = Path(path)
        try:
            if file.is_dir():
                file = file / "config.json"
            there = file.is_file()
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise ConfigError(f"{shown(str(path))} is no usable path: {reason}") from None
        if not there:
            raise ConfigError(f"{placed(file)} does not exist: expected a drafter's folder with a config.json, or that file")
        if not stays_inside(file.parent, file):
            raise ConfigError(f"{placed(file)} leads out of the folder through a link: refused")
        config, found = diagnose(read_object(file, ConfigError))
        if config is None or found:
            raise InvalidConfigError(found, where=placed(file))
        return config

    def to_dict(self, layout: str = "zlab") -> dict[str, Any]:
        """The config.json of this drafter in `layout`; ConfigError where that layout has no words for it."""
        if layout not in LAYOUTS:
            raise ConfigError(f"layout is {layout!r}: expected one of {', '.join(LAYOUTS)}")
        written: dict[str, Any] = LAYOUTS[layout].write(self)
        return written


def layout_of(mapping: Mapping[str, Any]) -> str:
    """Which layout a config.json is written in."""
    return "speculators" if speculators.claims(mapping) else "zlab"


def is_drafter(mapping: Mapping[str, Any]) -> bool:
    """Whether a config.json says that it is a DFlash drafter's, sound or not."""
    names = mapping.get("architectures")
    named = isinstance(names, list) and any(isinstance(name, str) and "DFlash" in name for name in names)
    return other_model(mapping) is None and (named or layout_of(mapping) == "speculators" or "dflash_config" in mapping)


def other_model(mapping: Mapping[str, Any]) -> str | None:
    """A sentence when this is the config of something else altogether: a target, or another kind of drafter."""
    kind, names = mapping.get("speculators_model_type"), mapping.get("architectures")
    if isinstance(kind, str):
        if kind in speculators.VERSIONS:
            return None
        return f"this is a speculator of type {shown(kind)}: expected {' or '.join(speculators.VERSIONS)}"
    if (
        isinstance(names, list)
        and names
        and not any(isinstance(name, str) and "DFlash" in name for name in names)
        and "dflash_config" not in mapping
    ):
        return (
            f"this is the config of another model, perhaps of a target, architectures {shown(names)}: expected a DFlash "
            f"drafter, whose architectures is {' or '.join(zlab.VERSIONS)}"
        )
    return None


def diagnose(mapping: Mapping[str, Any]) -> tuple[DrafterConfig | None, list[str]]:
    """The config as far as it can be read, and everything that is wrong with it (then it must not be used)."""
    if not isinstance(mapping, Mapping):
        return None, [f"a drafter's config is an object of names and values, found {shown(mapping)}"]
    if (stranger := other_model(mapping)) is not None:
        return None, [stranger]
    values, found = LAYOUTS[layout_of(mapping)].read(mapping)
    if values is None:
        return None, found
    try:
        return DrafterConfig(**values), found
    except InvalidConfigError as error:
        return None, [*found, *error.problems]
