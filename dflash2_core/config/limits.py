"""What a drafter's config must satisfy, checked before a byte is allocated for it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dflash2_core.config.reading import integer, shown
from dflash2_core.config.rope import rope_problems

if TYPE_CHECKING:
    from dflash2_core.config.drafter import DrafterConfig

SIZES = {
    # field -> smallest and largest value; the ceilings are far above any real model and catch broken and hostile files
    "block_size": (2, 1024),
    "mask_token_id": (0, 2**24 - 1),
    "hidden_size": (1, 2**18),
    "target_hidden_size": (1, 2**18),
    "intermediate_size": (1, 2**20),
    "num_hidden_layers": (1, 512),
    "num_attention_heads": (1, 2**12),
    "num_key_value_heads": (1, 2**12),
    "head_dim": (2, 2**12),
    "vocab_size": (2, 2**24),
    "max_position_embeddings": (1, 2**31 - 1),
    "num_target_layers": (2, 2**12),
    "conv_kernel_size": (1, 1024),
    "conv_group_size": (1, 2**18),
    "selector_rank": (1, 2**16),
    "selector_top_k": (1, 2**24),
    "sliding_window": (1, 2**31 - 1),
}
MAX_PARAMETERS = 2**38
SECOND_VERSION_FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
OPTIONAL_SIZES = ("num_target_layers", *SECOND_VERSION_FIELDS)
ACTIVATIONS = ("silu",)


def size(field: str) -> Callable[[object], int]:
    """A parse of an integer within the field's limits."""

    def parse(value: object) -> int:
        found, (low, high) = integer(value), SIZES[field]
        if not low <= found <= high:
            raise ValueError(f"expected an integer from {low} to {high}, found {shown(found)}")
        return found

    return parse


def problems_of(config: "DrafterConfig") -> Iterator[str]:
    """Every law that `config` breaks, as sentences; later laws assume that the sizes hold."""
    broken = [*_version_problems(config), *_size_problems(config)]
    yield from broken
    if broken:
        return
    yield from _tap_problems(config)
    yield from _layer_problems(config)
    yield from _token_problems(config)
    yield from _scale_problems(config)
    yield from rope_problems(config.rope_parameters)
    yield from _shape_problems(config)


def _version_problems(config: "DrafterConfig") -> Iterator[str]:
    present = [name for name in SECOND_VERSION_FIELDS if getattr(config, name) is not None]
    if config.version not in (1, 2):
        yield f"version is {shown(config.version)}: expected 1 or 2"
    elif config.version == 1 and present:
        yield (
            f"this is declared as DFlash 1 but has {', '.join(present)} of DFlash 2: it would draft as something it is "
            "not; declare DFlash 2 (architectures DFlash2DraftModel, or speculators_model_type dflash2)"
        )
    elif config.version == 2 and len(present) < len(SECOND_VERSION_FIELDS):
        missing = [name for name in SECOND_VERSION_FIELDS if name not in present]
        yield f"{', '.join(missing)} missing: DFlash 2 needs convolution and selector, and never runs as DFlash 1"


def _size_problems(config: "DrafterConfig") -> Iterator[str]:
    for name in [name for name in SIZES if name != "sliding_window"]:
        value = getattr(config, name)
        if value is not None or name not in OPTIONAL_SIZES:
            yield from _out_of_range(name, value)


def _out_of_range(name: str, value: object) -> Iterator[str]:
    try:
        size(name)(value)
    except ValueError as error:
        yield f"{name}: {error}"


def _tap_problems(config: "DrafterConfig") -> Iterator[str]:
    taps, count = config.target_layer_ids, config.num_target_layers
    most = SIZES["num_target_layers"][1]
    if not 0 < len(taps) <= most or any(tap >= most for tap in taps):
        yield f"target_layer_ids is {shown(list(taps))}: expected 1 to {most} layers of the target, none above {most}"
        return
    for tap, times in Counter(taps).items():
        if times > 1:
            yield f"target_layer_ids names layer {tap} twice: each tap has its own columns in fc.weight"
        if tap < 0:
            yield f"target_layer_ids holds {shown(tap)}: taps are outputs of layers, counted from 0"
        elif count is not None and tap >= count:
            yield f"target_layer_ids holds {tap} but the target has {count} layers, counted from 0"
        elif count is not None and tap == count - 1:
            yield (
                f"target_layer_ids holds {tap}, the target's last layer: refused, since engines disagree on what that "
                f"output is (before or after the final norm); taps go up to {tap - 1}"
            )


def _layer_problems(config: "DrafterConfig") -> Iterator[str]:
    for name in ("layer_windows", "layer_causal"):
        if len(getattr(config, name)) != config.num_hidden_layers:
            yield f"{name} has {len(getattr(config, name))} entries but num_hidden_layers is {config.num_hidden_layers}"
    windows = {window for window in config.layer_windows if window is not None}
    if len(windows) > 1:
        yield f"layer_windows holds {len(windows)} different windows: every layout has one for all sliding layers"
    for window in windows:
        yield from _out_of_range("sliding_window", window)


def _token_problems(config: "DrafterConfig") -> Iterator[str]:
    stated = {
        "bos_token_id": [config.bos_token_id],
        "eos_token_id": config.eos_token_ids,
        "pad_token_id": [config.pad_token_id],
    }
    for name, tokens in stated.items():
        for token in tokens:
            if token is not None and (isinstance(token, bool) or not isinstance(token, int) or token < 0):
                yield f"{name} is {shown(token)}: expected an id from 0, or nothing where there is none"
    mask = config.mask_token_id
    if mask >= config.vocab_size:
        yield f"mask_token_id is {mask} but vocab_size is {config.vocab_size}: it has no embedding"
    if mask in config.eos_token_ids:
        yield f"mask_token_id and eos_token_id are both {mask}: the mask cannot be a token that ends the text"
    if mask == config.pad_token_id:
        yield f"mask_token_id and pad_token_id are both {mask}: the mask row has to be its own token"
    if config.selector_top_k is not None and config.selector_top_k > config.vocab_size:
        yield f"selector_top_k is {config.selector_top_k} but vocab_size is {config.vocab_size}"


def _scale_problems(config: "DrafterConfig") -> Iterator[str]:
    if config.hidden_act not in ACTIVATIONS:
        yield f"hidden_act is {shown(config.hidden_act)}: supported is {', '.join(ACTIVATIONS)}"
    if not 0 < config.rms_norm_eps < 1:
        yield f"rms_norm_eps is {config.rms_norm_eps}: expected a number between 0 and 1"
    for name in ("input_embedding_scale", "output_multiplier", "final_logit_softcapping"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            yield f"{name} is {value}: expected a positive number"


def _shape_problems(config: "DrafterConfig") -> Iterator[str]:
    if config.num_attention_heads % config.num_key_value_heads:
        yield (
            f"num_attention_heads {config.num_attention_heads} is no multiple of num_key_value_heads "
            f"{config.num_key_value_heads}"
        )
    if config.head_dim % 2:
        yield f"head_dim is {config.head_dim}: rotation pairs channels, so it has to be even"
    group = config.conv_group_size
    if group is not None and config.hidden_size % group:
        yield f"conv_group_size {group} does not divide hidden_size {config.hidden_size}"
    elif config.num_parameters > MAX_PARAMETERS:
        yield f"the sizes ask for {config.num_parameters:,} parameters: more than {MAX_PARAMETERS:,} is no drafter"
