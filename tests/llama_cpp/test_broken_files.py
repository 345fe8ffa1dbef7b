"""A pair that llama.cpp would abort on, or draft nothing with, is a sentence before anything starts."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from dflash2_core import save_drafter
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import Dflash2Error
from dflash2_llama_cpp import LlamaCpp
from gguf_export.header import Key, read_header
from gguf_export.keys import key
from tests.gguf.toys import toy_drafter
from tests.llama_cpp.spoiling import rebuilt, values_of

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
MASK, TOKENS = "tokenizer.ggml.mask_token_id", "tokenizer.ggml.tokens"
Spoil = Callable[[Path, Path], Path]


def with_keys(**values: object) -> Spoil:
    """Names with __ for dots."""
    keys = [key(name.replace("__", "."), value) for name, value in values.items()]
    return lambda source, path: rebuilt(source, path, keys=keys)


def leaving_out(*names: str) -> Spoil:
    return lambda source, path: rebuilt(source, path, without=names)


def cut_short(source: Path, path: Path) -> Path:
    path.write_bytes(source.read_bytes()[:-1000])
    return path


def with_nan(source: Path, path: Path) -> Path:
    spoilt = values_of(source, "fc.weight").copy()
    spoilt[3, 5] = np.nan
    return rebuilt(source, path, tensors={"fc.weight": (spoilt, F32)})


def with_half_kernels(source: Path, path: Path) -> Path:
    name = "blk.0.attn_conv_base"
    return rebuilt(source, path, tensors={name: (values_of(source, name), F16)})


def with_a_tensor_more(source: Path, path: Path) -> Path:
    return rebuilt(source, path, tensors={"markov_w1.weight": (np.zeros((4, 32), np.float32), F32)})


def with_an_embedding_alone(source: Path, path: Path) -> Path:
    rows, width = values_of(source, "selector_predecessor.weight").shape[0], values_of(source, "output_norm.weight").size
    return rebuilt(source, path, tensors={"token_embd.weight": (np.ones((rows, width), np.float32), F32)})


def with_two_ids_exchanged(source: Path, path: Path) -> Path:
    tokens: Key = read_header(source).keys[TOKENS]
    exchanged = list(tokens.value)
    exchanged[300], exchanged[301] = exchanged[301], exchanged[300]
    return rebuilt(source, path, keys=[replace(tokens, value=exchanged)])


def with_fewer_ids(source: Path, path: Path) -> Path:
    tokens: Key = read_header(source).keys[TOKENS]
    return rebuilt(source, path, keys=[replace(tokens, value=tokens.value[:-1])])


DRAFTERS: dict[str, tuple[Spoil, str]] = {
    "no taps": (leaving_out("dflash.target_layers"), "dflash.target_layers is missing"),
    "a tap beyond the target": (
        with_keys(dflash__target_layers=[1, 2, 9]),
        "target_layer_ids holds 8 but the target has 4 layers",
    ),
    "a tap on the last layer": (
        with_keys(dflash__target_layers=[1, 2, 4], dflash2__num_target_layers=5),
        "trained on a target of 5 layers.*taps layer 3, the target's last",
    ),
    "no mask token": (leaving_out(MASK), "mask_token_id is .*None.*without a mask token nothing can be drafted"),
    "a mask token outside": (with_keys(tokenizer__ggml__mask_token_id=5000), "5000"),
    "a tap beyond a target whose depth it does not know": (
        lambda source, path: rebuilt(
            source, path, keys=[key("dflash.target_layers", [1, 2, 9])], without=["dflash2.num_target_layers"]
        ),
        "taps layer 8, the target's layers are 0..3",
    ),
    "a mask token that ends texts": (with_keys(tokenizer__ggml__mask_token_id=0), "mask_token_id and eos_token_id are both 0"),
    "too many candidates": (with_keys(dflash__selector_top_k=20), "top_k is 20 .*at least top_k \\* \\(top_k \\+ 1\\) = 420"),
    "no block size": (leaving_out("dflash.block_size"), "block_size is missing"),
    "a window without a pattern": (leaving_out("dflash.attention.sliding_window_pattern"), "sliding_window_pattern"),
    "a tensor missing": (leaving_out("selector_hidden.weight"), "selector_hidden.weight"),
    "a tensor more": (with_a_tensor_more, "markov_w1.weight"),
    "weights that are no numbers": (with_nan, "fc.weight"),
    "kernels in half precision": (with_half_kernels, "attn_conv_base is stored as F16.*F32 only"),
    "an embedding without a head": (with_an_embedding_alone, "embed_tokens.weight but no lm_head.weight"),
    "a permuted tokenizer": (with_two_ids_exchanged, "tokenizers differ.*2 of 1024 places, first at 300"),
    "a smaller vocabulary": (with_fewer_ids, "1023"),
    "a file cut short": (cut_short, "no sound GGUF.*cut off"),
    "an unknown key": (with_keys(dflash__sample_from_anchor=True), "sample_from_anchor"),
}


def refusal(engine: LlamaCpp, target: Path, drafter: Path, log: Path, **options: object) -> str:
    """The sentence with which `start` refuses; no server was started."""
    with pytest.raises(Dflash2Error) as caught:
        engine.start(target, drafter, EngineOptions(log=log, **options))
    assert not log.exists(), "llama-server was started"
    return str(caught.value).replace("\n", " ")


@pytest.mark.parametrize("fault", DRAFTERS)
def test_a_broken_drafter_is_a_sentence(fault: str, engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    spoil, sentence = DRAFTERS[fault]
    broken = spoil(files / "f32.gguf", tmp_path / "broken.gguf")
    said = refusal(engine, files / "target.gguf", broken, tmp_path / "log")
    assert re.search(sentence, said), said
    assert "broken.gguf" in said


def test_a_drafter_of_another_width_is_a_sentence(engine: LlamaCpp, target: Path, tmp_path: Path) -> None:
    save_drafter(toy_drafter(), tmp_path / "toy")
    said = refusal(engine, target, tmp_path / "toy", tmp_path / "log", cache=tmp_path)
    assert "features of width 16, the target's are 288" in said


def test_a_target_that_cannot_be_tapped_is_a_sentence(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    foreign = rebuilt(files / "target.gguf", tmp_path / "qwen2.gguf", architecture="qwen2")
    assert "architecture 'qwen2', whose layers llama.cpp cannot tap" in refusal(
        engine, foreign, files / "f32.gguf", tmp_path / "log"
    )


def test_files_in_the_wrong_order_are_a_sentence(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    said = refusal(engine, files / "f32.gguf", files / "target.gguf", tmp_path / "log")
    assert "f32.gguf is a drafter's GGUF: expected the target first" in said
    said = refusal(engine, files / "target.gguf", files / "target.gguf", tmp_path / "log")
    assert "expected a drafter's, whose architecture is dflash" in said


def test_a_target_without_its_weights_is_a_sentence(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    names = read_header(files / "target.gguf").tensors
    empty = rebuilt(files / "target.gguf", tmp_path / "empty.gguf", without=names)
    assert "empty.gguf holds no weights" in refusal(engine, empty, files / "f32.gguf", tmp_path / "log")


def test_a_folder_for_a_target_is_a_sentence(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    assert "convert_hf_to_gguf.py" in refusal(engine, tmp_path, files / "f32.gguf", tmp_path / "log")


def test_what_is_no_gguf_is_a_sentence(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("a text")
    assert "is no GGUF" in refusal(engine, files / "target.gguf", tmp_path / "text.gguf", tmp_path / "log")
    assert "does not begin with GGUF" in refusal(engine, tmp_path / "text.gguf", files / "f32.gguf", tmp_path / "log")
    assert "no file" in refusal(engine, tmp_path / "absent.gguf", files / "f32.gguf", tmp_path / "log")
