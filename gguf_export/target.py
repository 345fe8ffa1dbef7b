"""What an export needs of the target: its sizes, and its tokenizer as GGUF keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFValueType

from dflash2_core.compatibility import TargetFacts
from dflash2_core.config.documents import read_object
from dflash2_core.config.reading import natural, placed, shown
from dflash2_core.errors import CheckpointError, CompatibilityError
from gguf_export.bpe import read_tokenizer
from gguf_export.header import Header, Key, read_header
from gguf_export.keys import MASK, TOKENS

TOKENIZER = "tokenizer."
ENDS_AND_PADDING = {"end-of-sequence": "eos", "end-of-turn": "eot", "padding": "padding"}
"""Tokens that a mask must not be -> their word in `tokenizer.ggml.*_token_id`."""
ARCHITECTURES = {
    # Hugging Face's name of a model -> llama.cpp's, of those that hand out the inputs of their layers
    "BailingMoeV3ForCausalLM": "bailingmoe3",
    "DeepseekV4ForCausalLM": "deepseek4",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "GptOssForCausalLM": "gpt-oss",
    "HunYuanVLForConditionalGeneration": "hunyuan_vl",
    "Lfm2ForCausalLM": "lfm2",
    "LlamaForCausalLM": "llama",
    "MiMoV2FlashForCausalLM": "mimo2",
    "MiMoV2ForCausalLM": "mimo2",
    "MiniMaxM1ForCausalLM": "minimax-01",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "MiniMaxText01ForCausalLM": "minimax-01",
    "MistralForCausalLM": "llama",
    "MuseGlimmerForConditionalGeneration": "muse-glimmer",
    "NanbeigeForCausalLM": "nanbeige",
    "NemotronHForCausalLM": "nemotron_h",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5ForConditionalGeneration": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
    "Qwen4ExpForCausalLM": "qwen4exp",
    "Qwen4ExpForConditionalGeneration": "qwen4exp",
}
TAPPED = {*ARCHITECTURES.values(), "nemotron_h_moe"}
"""llama.cpp's architectures that hand out the inputs of their layers (`t_layer_inp` in its graphs)."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """architecture in llama.cpp's words; mrope: its positions have several axes; tokenizer: every `tokenizer.*` key."""

    path: Path
    architecture: str
    facts: TargetFacts
    mrope: bool
    tokenizer: tuple[Key, ...]
    name: str | None


def read_target(path: str | Path) -> Target:
    """From the target's GGUF, whose tokenizer is copied key by key, or its Hugging Face folder.

    Raises CheckpointError for what is neither, CompatibilityError for a target that llama.cpp cannot tap.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{placed(path)} does not exist: expected the target's GGUF, or its Hugging Face folder")
    return _from_folder(path) if path.is_dir() else _from_gguf(read_header(path))


def _from_gguf(header: Header) -> Target:
    architecture = header.architecture or "unnamed"
    _require_tapped(architecture, header.path)
    values = {name: _natural(header, f"{architecture}.{name}") for name in ("block_count", "embedding_length")}
    predicting = f"{architecture}.nextn_predict_layers"  # layers after the last one, which only draft
    own = values["block_count"] - (_natural(header, predicting) if predicting in header.keys else 0)
    tokens = header.value(TOKENS)
    if not isinstance(tokens, list) or header.keys[TOKENS].item != GGUFValueType.STRING:
        raise CheckpointError(f"{placed(header.path)} has no list {TOKENS}: expected a target with its tokenizer")
    sections, name = header.value(f"{architecture}.rope.dimension_sections"), header.value("general.name")
    return Target(
        path=header.path,
        architecture=architecture,
        facts=TargetFacts(
            hidden_size=values["embedding_length"],
            vocab_size=len(tokens),
            num_layers=own,
            special_ids=_special_ids(header.keys),
        ),
        mrope=isinstance(sections, list) and any(sections),
        tokenizer=tuple(key for name, key in header.keys.items() if name.startswith(TOKENIZER) and _is_copied(key)),
        name=name if isinstance(name, str) else None,
    )


def _from_folder(folder: Path) -> Target:
    document = read_object(folder / "config.json", CheckpointError)
    names = document.get("architectures")
    stated = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "unnamed"
    _require_tapped(ARCHITECTURES.get(stated, stated), folder)
    text = document.get("text_config", document)
    text = text if isinstance(text, dict) else {}
    sizes = {name: _size(text, name, folder) for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    tokenizer = read_tokenizer(folder, sizes["vocab_size"])
    return Target(
        path=folder,
        architecture=ARCHITECTURES[stated],
        facts=TargetFacts(
            hidden_size=sizes["hidden_size"],
            vocab_size=sizes["vocab_size"],
            num_layers=sizes["num_hidden_layers"],
            special_ids=_special_ids({key.name: key for key in tokenizer}),
        ),
        mrope="mrope_section" in json.dumps(rope),
        tokenizer=tuple(tokenizer),
        name=None,
    )


def _is_copied(key: Key) -> bool:
    """The mask is the drafter's own; an empty list says what its absence says, and cannot be written."""
    return key.name != MASK and key.value != []


def _require_tapped(architecture: str, path: Path) -> None:
    if architecture not in TAPPED:
        raise CompatibilityError(
            f"{placed(path)} is a model of architecture {shown(architecture)}, whose layers llama.cpp cannot tap for a "
            f"drafter: it can those of {', '.join(sorted(TAPPED))}"
        )


def _special_ids(keys: Mapping[str, Key]) -> dict[str, int]:
    places = {name: f"tokenizer.ggml.{place}_token_id" for name, place in ENDS_AND_PADDING.items()}
    return {name: keys[place].value for name, place in places.items() if place in keys}


def _natural(header: Header, name: str) -> int:
    try:
        return natural(header.value(name))
    except ValueError as problem:
        raise CheckpointError(f"{placed(header.path)}: {name}: {problem}; expected the GGUF of a whole target") from None


def _size(document: Mapping[str, Any], name: str, folder: Path) -> int:
    try:
        return natural(document.get(name))
    except ValueError as problem:
        raise CheckpointError(f"{placed(folder / 'config.json')}: {name}: {problem}") from None
