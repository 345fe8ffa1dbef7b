"""Small targets as GGUF and as folders, drafters that fit them, and a way to ask a drafter for the logits of a block."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from torch import Tensor

from dflash2_core import Drafter, DrafterConfig, save_drafter
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK
from gguf_export.header import Header, Key, read_header
from gguf_export.reading import read
from tests.core.toys import EOS, MASK, PAD, VOCABULARY, drafter_config, randomise

LAYERS, WIDTH = 6, 16
BYTES = [chr(33 + i) for i in range(VOCABULARY - 4)]  # one-character tokens, of which two can be merged


def toy_config(**changes: object) -> DrafterConfig:
    """A drafter for the toy target, with as few candidates as llama.cpp can pack into its width."""
    return drafter_config(**{"selector_top_k": 3, "eos_token_ids": (EOS,), "pad_token_id": PAD} | changes)


def toy_drafter(seed: int = 0, own: Iterable[str] = (), **changes: object) -> Drafter:
    """Random weights, no two layers alike."""
    drafter = Drafter(toy_config(**changes), set(own))
    randomise(drafter, seed)
    return drafter.requires_grad_(False).eval()


def saved(drafter: Drafter, folder: Path, **options: Any) -> Path:
    save_drafter(drafter, folder, **options)
    return folder


def loaded(path: Path) -> Drafter:
    """The drafter in a GGUF."""
    config, tensors = read(path)
    drafter = Drafter(config, {OWN_EMBEDDING, OWN_HEAD, OWN_MASK} & set(tensors))
    drafter.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=True)
    return drafter.requires_grad_(False).eval()


def toy_tokenizer() -> dict[str, Any]:
    """tokenizer.json of 37 ids as GPT-2 splits texts; the last are special."""
    special = {"<pad>": PAD, "<eos>": EOS, "<mask>": MASK}
    plain = ("single_word", "lstrip", "rstrip", "normalized")
    vocabulary = {text: index for index, text in enumerate([*BYTES, BYTES[0] + BYTES[1]])}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": text, "special": True, **dict.fromkeys(plain, False)} for text, index in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [[BYTES[0], BYTES[1]]]},
    }


def write_folder(folder: Path, *, tokenizer: dict[str, Any] | None = None, **changes: object) -> Path:
    """A Hugging Face folder of the toy target, without its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
    } | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer or toy_tokenizer()))
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def write_target(path: Path, *, architecture: str = "qwen3", vocabulary: int = VOCABULARY, **keys: Any) -> Path:
    """A GGUF with the keys of the toy target and a tokenizer that no folder could give, without weights."""
    writer = GGUFWriter(path, architecture)
    sizes = {"block_count": LAYERS, "embedding_length": WIDTH} | {k: v for k, v in keys.items() if isinstance(v, int)}
    for name, value in sizes.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for name, value in keys.items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{name.replace('__', '.')}", value)
    writer.add_name("toy-org/toy-target")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"▁token{i}" for i in range(vocabulary)])
    writer.add_token_scores([-0.1 * i for i in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_mask_token_id(0)  # the target's own idea, which is not the drafter's
    writer.add_add_bos_token(True)
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def rewritten(source: Path, path: Path, *, keys: Iterable[Key] = (), without: Iterable[str] = ()) -> Path:
    """The GGUF `source` with some keys or tensors replaced or left out."""
    header, data = read_header(source), source.read_bytes()
    writer = GGUFWriter(path, header.architecture or "")
    changed = {key.name: key for key in keys}
    for name, key in (header.keys | changed).items():
        if name not in (*without, "general.architecture"):
            writer.add_key_value(name, key.value, key.kind, key.item)
    kept = {name: place for name, place in header.tensors.items() if name not in set(without)}
    for name, place in kept.items():
        writer.add_tensor_info(name, place.shape, np.dtype(np.float32), place.num_bytes, raw_dtype=place.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for place in kept.values():
        writer.write_tensor_data(np.frombuffer(data, np.uint8, place.num_bytes, place.begin))
    writer.close()
    return path


def with_value(header: Header, name: str, value: Any) -> Key:
    """The key `name` of a file with another value of the same type."""
    return replace(header.keys[name], value=value)


def block_logits(drafter: Drafter, committed: int, seed: int = 0) -> Tensor:
    """Logits [B - 1, V] of the block after `committed` random features, with a random embedding and head of the target's."""
    config, generator = drafter.config, torch.Generator().manual_seed(seed)
    taps = torch.randn(1, committed, len(config.target_layer_ids) * config.target_hidden_size, generator=generator)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    head = torch.randn(config.vocab_size, config.hidden_size, generator=generator) / config.hidden_size**0.5
    context = drafter.new_context()
    context.join()
    context.append(taps, [committed])
    L = config.block_size
    ids = torch.full((1, L), config.mask_token_id)
    ids[:, 0] = 3
    positions = torch.arange(committed, committed + L)[None]
    rows = drafter.embed(ids, lambda tokens: embedding[tokens])
    hidden = drafter.hidden(rows, positions, context.views([L], L).attention(torch.tensor([committed]), torch.tensor([L]), L))
    return drafter.logits(hidden, lambda states: states @ head.T)[0, 1:]
