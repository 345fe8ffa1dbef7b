"""The embedded target as a GGUF, in float32: llama.cpp's own converter does not know its tokenizer."""

import os
from pathlib import Path

import torch
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from safetensors import safe_open

from dflash2_core.assets import tiny_pair
from dflash2_core.config.documents import read_object
from dflash2_core.errors import CheckpointError
from gguf_export.bpe import read_tokenizer

ARCHITECTURE = "qwen3"


def write_embedded_target(path: Path) -> Path:
    """The embedded pair's target, a Qwen3 with tied tables, as the GGUF `path`, which appears only when whole."""
    folder, unfinished = tiny_pair().target, path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(folder, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _write(folder: Path, path: Path) -> None:
    config = read_object(folder / "config.json", CheckpointError)
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_name("tiny target")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for key in read_tokenizer(folder, config["vocab_size"]):
        writer.add_key_value(key.name, key.value, key.kind, key.item)
    writer.add_chat_template(read_object(folder / "tokenizer_config.json", CheckpointError)["chat_template"])
    names = get_tensor_name_map(MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118, it is no mapping
            place = names.get_name(name, try_suffixes=(".weight",))
            assert place is not None, name
            writer.add_tensor(place, weights.get_tensor(name).to(torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
