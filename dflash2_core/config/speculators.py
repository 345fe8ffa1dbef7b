"""config.json as speculators 0.9 writes it: `transformer_layer_config` nested, the drafter's own keys at the top level.

Facts from that package's config classes: taps are stored as l + 1 (the input of the next layer); a layer that does not
slide is never causal; a sliding layer is causal unless `sliding_window_non_causal`, whose default differs by version;
scale, multiplier and soft cap have no place there; `draft_vocab_size` smaller than the target's means a reduced vocabulary.

A file that says a scale, the multiplier or a soft cap all the same, beside the drafter's other keys, is taken at its word: the
names mean one thing only. None of them is written, since speculators itself would pass over it.

`speculators_config` repeats what the type and the block say, and must agree with them. The verifier it names (the target, by
name or path) is not kept: a DrafterConfig knows its target by sizes alone, and `write` names none.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dflash2_core.config.attention import FULL, SLIDING, Windows, read_windows
from dflash2_core.config.keys import read_bookkeeping, refuse_unread
from dflash2_core.config.limits import SECOND_VERSION_FIELDS, size
from dflash2_core.config.reading import Reader, boolean, integer, integers, mapping, shown, string
from dflash2_core.config.zlab import read_body, read_scales, read_tokens, write_body
from dflash2_core.errors import ConfigError

if TYPE_CHECKING:
    from dflash2_core.config.drafter import DrafterConfig

VERSIONS = {"dflash": 1, "dflash2": 2}
TYPES = {version: name for name, version in VERSIONS.items()}
ARCHITECTURES = {1: ("DFlashSpeculator", "DFlashDraftModel"), 2: ("DFlash2DraftModel",)}
NON_CAUSAL_BY_DEFAULT = {1: False, 2: True}
LAYER = "transformer_layer_config"
WRITTEN_VERSION = "0.9.0"
AUTO_MAPS = ({"": "config.DFlashSpeculatorConfig"}, {"": "config.DFlash2SpeculatorConfig"})
"""What the package writes by itself: an entry under an empty name, which no loader looks up. No other one is accepted."""
BOOKKEEPING = ("speculators_version", "max_anchors")
ALGORITHM = "speculators_config"


def claims(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is written in this layout."""
    return "speculators_model_type" in document


def read(document: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Fields of a DrafterConfig, None when one could not be read; and every problem found."""
    reader = Reader(document)
    if not reader.section(LAYER):
        reader.problems.append(f"{LAYER} is missing: speculators keeps the layers' config there")
    version = _read_version(reader)
    values: dict[str, Any] = {
        "version": version,
        "block_size": reader.need(size("block_size"), "block_size"),
        "mask_token_id": reader.need(size("mask_token_id"), "mask_token_id"),
        "target_layer_ids": _read_taps(reader),
        **read_body(reader, f"{LAYER}."),
    }
    optional: dict[str, Any] = {name: reader.value(size(name), name) for name in SECOND_VERSION_FIELDS}
    optional["num_target_layers"] = reader.value(size("num_target_layers"), "num_target_layers")
    optional |= read_scales(reader, lambda key: (key,))
    optional |= read_tokens(reader, f"{LAYER}.", "")
    hidden = reader.value(size("target_hidden_size"), "target_hidden_size")
    values["target_hidden_size"] = hidden if hidden is not None else values["hidden_size"]
    values |= _read_layers(reader, version, values["num_hidden_layers"])
    _check_vocabulary(reader, values["vocab_size"])
    _check_algorithm(reader, version, values["block_size"])
    for key in BOOKKEEPING:
        reader.raw(key)
    read_bookkeeping(reader, "", accept={"auto_map": AUTO_MAPS})
    read_bookkeeping(reader, f"{LAYER}.")
    refuse_unread(reader)
    if any(value is None for value in values.values()):
        return None, reader.problems
    return values | {name: value for name, value in optional.items() if value is not None}, reader.problems


def _read_version(reader: Reader) -> int | None:
    kind = reader.need(string, "speculators_model_type")
    if kind is not None and kind not in VERSIONS:
        reader.problems.append(f"speculators_model_type is {shown(kind)}: expected {' or '.join(VERSIONS)}")
    version = VERSIONS.get(kind) if kind is not None else None
    names = reader.raw("architectures")
    if version is not None and names is not None and names not in [[name] for name in ARCHITECTURES[version]]:
        reader.problems.append(
            f"speculators_model_type is {kind} but architectures is {shown(names)}: expected "
            f"{' or '.join(ARCHITECTURES[version])}"
        )
    return version


def _read_taps(reader: Reader) -> tuple[int, ...] | None:
    inputs = reader.need(integers, "aux_hidden_state_layer_ids")
    if inputs is not None and 0 in inputs:
        reader.problems.append(
            "aux_hidden_state_layer_ids holds 0, the target's embeddings: taps are outputs of layers, stored as l + 1"
        )
        return None
    return None if inputs is None else tuple(layer - 1 for layer in inputs)


def _read_layers(reader: Reader, version: int | None, num_layers: int | None) -> dict[str, Any]:
    windows = read_windows(reader, f"{LAYER}.", num_layers)
    non_causal = reader.value(boolean, "sliding_window_non_causal")
    if windows is None or version is None:
        return {"layer_windows": None, "layer_causal": None}
    if non_causal is None:
        non_causal = NON_CAUSAL_BY_DEFAULT[version]
    if not non_causal and _lifted(windows):
        reader.problems.append(
            "sliding_window_non_causal is false and the layers are called sliding, but use_sliding_window is false: "
            "stacks disagree on whether such layers are causal; call them full_attention or keep the window"
        )
    causal = tuple(window is not None and not non_causal for window in windows.windows)
    return {"layer_windows": windows.windows, "layer_causal": causal}


def _lifted(windows: Windows) -> bool:
    return any(kind == SLIDING and window is None for kind, window in zip(windows.types, windows.windows, strict=True))


def _check_vocabulary(reader: Reader, vocab_size: int | None) -> None:
    reduced = reader.value(size("vocab_size"), "draft_vocab_size")
    if reduced is not None and vocab_size is not None and reduced != vocab_size:
        reader.problems.append(
            f"draft_vocab_size is {reduced} but {LAYER}.vocab_size is {vocab_size}: a reduced vocabulary (t2d, d2t) is "
            "not supported; DFlash 2 always has the full one"
        )


def _check_algorithm(reader: Reader, version: int | None, block_size: int | None) -> None:
    if not reader.section(ALGORITHM):
        return
    algorithm = reader.value(string, f"{ALGORITHM}.algorithm")
    if version is not None and algorithm not in (None, TYPES[version]):
        reader.problems.append(
            f"{ALGORITHM}.algorithm is {shown(algorithm)} but speculators_model_type is {TYPES[version]}: make them agree"
        )
    reader.value(mapping, f"{ALGORITHM}.verifier")
    reader.value(string, f"{ALGORITHM}.default_proposal_method")
    for tokens in reader.value(_speculative_tokens, f"{ALGORITHM}.proposal_methods") or ():
        # A block drafts one token less than it has rows; older releases of the package stated the rows.
        if block_size is not None and tokens not in (block_size - 1, block_size):
            reader.problems.append(
                f"{ALGORITHM} states {shown(tokens)} speculative_tokens but block_size is {block_size}, which drafts "
                f"{block_size - 1}: make them agree"
            )


def _speculative_tokens(value: object) -> tuple[int, ...]:
    """What each proposal method states of them."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of objects, found {shown(value)}")
    stated = [mapping(method).get("speculative_tokens") for method in value]
    return tuple(integer(tokens) for tokens in stated if tokens is not None)


def write(config: "DrafterConfig") -> dict[str, Any]:
    """The config.json of `config`; ConfigError where speculators would read something else."""
    _refuse_unsayable(config)
    second = {name: getattr(config, name) for name in SECOND_VERSION_FIELDS} if config.version == 2 else {}
    written = {
        "architectures": [ARCHITECTURES[config.version][0]],
        "speculators_model_type": TYPES[config.version],
        "speculators_version": WRITTEN_VERSION,
        "speculators_config": _algorithm(config),
        LAYER: {**write_body(config), **_write_layers(config)},
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": not any(config.layer_causal),
        "sample_from_anchor": False,
        "target_hidden_size": None,
        **second,
    }
    if config.num_target_layers is not None:
        written["num_target_layers"] = config.num_target_layers
    return written


def _refuse_unsayable(config: "DrafterConfig") -> None:
    said = {
        "input_embedding_scale": config.input_embedding_scale == 1.0,
        "output_multiplier": config.output_multiplier == 1.0,
        "final_logit_softcapping": config.final_logit_softcapping is None,
        "target_hidden_size unlike hidden_size": config.target_hidden_size == config.hidden_size,
        "a causal layer without a window": all(
            window is not None or not causal for window, causal in zip(config.layer_windows, config.layer_causal, strict=True)
        ),
        "sliding layers of which only some are causal": len(_sliding_causality(config)) < 2,
    }
    if unsaid := [what for what, can in said.items() if not can]:
        raise ConfigError(
            f"this drafter has {', '.join(unsaid)}: speculators 0.9 has no words for that and would run "
            "another drafter; keep the z-lab layout"
        )


def _sliding_causality(config: "DrafterConfig") -> set[bool]:
    layers = zip(config.layer_windows, config.layer_causal, strict=True)
    return {causal for window, causal in layers if window is not None}


def _write_layers(config: "DrafterConfig") -> dict[str, Any]:
    windows = {window for window in config.layer_windows if window is not None}
    return {
        "layer_types": [FULL if window is None else SLIDING for window in config.layer_windows],
        "sliding_window": next(iter(windows), None),
        "use_sliding_window": bool(windows),
        "max_window_layers": config.num_hidden_layers,
    }


def _algorithm(config: "DrafterConfig") -> dict[str, Any]:
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": config.num_drafts,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": TYPES[config.version],
        "proposal_methods": [proposal],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": None, "architectures": []},
    }
