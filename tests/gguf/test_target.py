"""The target: its tokenizer is copied key by key or read from a folder, and what is no such thing is refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash2_core.assets import tiny_pair
from dflash2_core.errors import CheckpointError, CompatibilityError, Dflash2Error
from gguf_export import export
from gguf_export.header import read_header
from gguf_export.target import read_target
from tests.core.toys import EOS, MASK, PAD
from tests.gguf.toys import rewritten, toy_tokenizer, with_value, write_folder, write_target

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    # as the published tokenizer.json files have them
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def split_by(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}


def test_a_ggufs_tokenizer_is_copied_key_by_key(drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    source, copied = read_header(target).keys, read_header(tmp_path / "d.gguf").keys
    names = {name for name in source if name.startswith("tokenizer.")}
    assert len(names) == 10
    assert {name for name in copied if name.startswith("tokenizer.")} == names
    for name in names - {"tokenizer.ggml.mask_token_id"}:
        assert copied[name] == source[name], name
    assert source["tokenizer.ggml.mask_token_id"].value == 0
    assert copied["tokenizer.ggml.mask_token_id"].value == MASK, "the mask is the drafter's"


def test_a_folders_tokenizer_is_told_whole(drafter: Path, target_folder: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target_folder, outtype="f32")
    header = read_header(tmp_path / "d.gguf")
    assert header.value("tokenizer.ggml.model") == "gpt2"
    assert header.value("tokenizer.ggml.pre") == "gpt-2"
    assert header.value("tokenizer.ggml.tokens")[33:] == [b'!"', b"<pad>", b"<eos>", b"<mask>"]
    assert header.value("tokenizer.ggml.token_type") == [1] * 34 + [3] * 3
    assert header.value("tokenizer.ggml.merges") == [b'! "']
    assert header.value("tokenizer.ggml.eos_token_id") == EOS
    assert header.value("tokenizer.ggml.padding_token_id") == PAD
    assert header.value("tokenizer.ggml.add_bos_token") is False


def test_ids_without_a_token_are_marked_unused(tmp_path: Path) -> None:
    target = read_target(write_folder(tmp_path / "padded", vocab_size=40))
    values = {key.name: key.value for key in target.tokenizer}
    assert target.facts.vocab_size == 40
    assert values["tokenizer.ggml.tokens"][37:] == [b"[PAD37]", b"[PAD38]", b"[PAD39]"]
    assert values["tokenizer.ggml.token_type"][36:] == [3, 5, 5, 5]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pre_tokenizer_is_known_by_its_pattern(name: str, tmp_path: Path) -> None:
    tokenizer = toy_tokenizer() | {"pre_tokenizer": split_by(PATTERNS[name]), "normalizer": {"type": "NFC"}}
    tokenizer["model"]["ignore_merges"] = name == "llama-bpe"
    keys = {key.name: key.value for key in read_target(write_folder(tmp_path / "t", tokenizer=tokenizer)).tokenizer}
    assert keys["tokenizer.ggml.pre"] == name


def test_a_token_that_begins_every_text_is_told(tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<pad>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<pad>": {"id": "<pad>", "ids": [PAD], "tokens": ["<pad>"]}},
    }
    folder = write_folder(tmp_path / "t", tokenizer=toy_tokenizer() | {"post_processor": template})
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<pad>"}))
    keys = {key.name: key.value for key in read_target(folder).tokenizer}
    assert keys["tokenizer.ggml.bos_token_id"] == PAD
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.add_eos_token"] is False


def unsupported() -> dict[str, tuple[Callable[[dict[str, Any]], Any], str]]:
    model: Callable[[str, Any], Callable[[dict[str, Any]], Any]] = lambda key, value: lambda t: t["model"].update({key: value})  # noqa: E731
    top: Callable[[str, Any], Callable[[dict[str, Any]], Any]] = lambda key, value: lambda t: t.update({key: value})  # noqa: E731
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel", "use_regex": True}]}
    return {
        "SentencePiece": (model("type", "Unigram"), "since its model is 'Unigram'"),
        "byte fall-back": (model("byte_fallback", True), "since its model has byte_fallback True"),
        "WordPiece": (model("continuing_subword_prefix", "##"), "since its model has continuing_subword_prefix '##'"),
        "a normalizer": (top("normalizer", {"type": "Lowercase"}), "since its normalizer is 'Lowercase'"),
        "a pattern": (top("pre_tokenizer", split_by(r"\w+|\s+")), "since its pre-tokenizer is {"),
        "digits": (top("pre_tokenizer", digits), "since its pre-tokenizer is {"),
        "no pre-tokenizer": (top("pre_tokenizer", None), "since its pre-tokenizer is None"),
        "a space put before": (
            top("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}),
            "since its pre-tokenizer is {",
        ),
        "whole pieces first": (model("ignore_merges", True), "is that of gpt-2 but ignore_merges is True"),
        "no merges": (model("merges", []), "since it has no merges, and llama.cpp needs at least one"),
        "a wrong merge": (model("merges", [["a", "b", "c"]]), "holds the merge ['a', 'b', 'c']"),
        "no vocabulary": (model("vocab", None), "has no vocabulary"),
        "an id that is no number": (model("vocab", {"a": "1"}), "holds the token 'a' with the id '1'"),
        "an id given twice": (model("vocab", {"a": 1, "b": 1}), "gives the id 1 to 'a' and to 'b'"),
        "more ids than the target": (model("vocab", {"a": 40}), "has the id 40 but the target's vocab_size is 37"),
        "an id beyond all memory": (model("vocab", {"a": 2**62}), "but the target's vocab_size is 37"),
    }


@pytest.mark.parametrize("name", unsupported())
def test_a_tokenizer_that_cannot_be_told_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    spoil, sentence = unsupported()[name]
    tokenizer = copy.deepcopy(toy_tokenizer())
    spoil(tokenizer)
    folder = write_folder(tmp_path / "t", tokenizer=tokenizer)
    with pytest.raises(Dflash2Error) as raised:
        read_target(folder)
    assert sentence in str(raised.value)


def test_the_way_out_of_an_unsupported_tokenizer_is_told(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", tokenizer=toy_tokenizer() | {"pre_tokenizer": None})
    with pytest.raises(CompatibilityError, match="give the target's GGUF instead"):
        read_target(folder)


def test_a_folder_without_a_tokenizer_is_refused(target_folder: Path) -> None:
    (target_folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer.json does not exist: .* SentencePiece models are not read"):
        read_target(target_folder)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "DFlash2DraftModel"])
def test_a_folder_of_a_target_that_cannot_be_tapped_is_refused(architecture: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", architectures=[architecture])
    with pytest.raises(CompatibilityError, match=f"architecture '{architecture}', whose layers llama.cpp cannot tap"):
        read_target(folder)


@pytest.mark.parametrize("without", ["qwen3.block_count", "qwen3.embedding_length", "tokenizer.ggml.tokens"])
def test_a_gguf_without_what_is_needed_of_a_target_is_refused(without: str, target: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{without}|expected a target"):
        read_target(rewritten(target, tmp_path / "less.gguf", without=[without]))


def test_a_gguf_whose_sizes_are_no_numbers_is_refused(target: Path, tmp_path: Path) -> None:
    key = with_value(read_header(target), "tokenizer.ggml.tokens", [b"a"])
    assert read_target(rewritten(target, tmp_path / "one.gguf", keys=[key])).facts.vocab_size == 1
    with pytest.raises(CheckpointError, match="does not begin with GGUF"):
        read_target(Path(__file__))
    with pytest.raises(CheckpointError, match="does not exist: expected the target's GGUF, or its"):
        read_target(tmp_path / "nothing.gguf")


def test_layers_that_only_draft_are_no_layers_of_the_target(tmp_path: Path) -> None:
    path = write_target(tmp_path / "mtp.gguf", block_count=8, nextn_predict_layers=2)
    assert read_target(path).facts.num_layers == 6


def test_a_text_model_inside_another_is_found(tmp_path: Path) -> None:
    text = {"hidden_size": 16, "num_hidden_layers": 6, "vocab_size": 37, "rope_parameters": {"mrope_section": [2, 1, 1]}}
    folder = write_folder(tmp_path / "t", architectures=["Qwen3_5ForConditionalGeneration"], text_config=text, hidden_size=None)
    target = read_target(folder)
    assert (target.architecture, target.facts.hidden_size, target.mrope) == ("qwen35", 16, True)


def test_the_embedded_target_is_read() -> None:
    target = read_target(tiny_pair().target)
    assert (target.architecture, target.mrope) == ("qwen3", False)
    assert (target.facts.hidden_size, target.facts.vocab_size, target.facts.num_layers) == (288, 1024, 4)
    assert target.facts.special_ids == {"end-of-sequence": 0, "padding": 1}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


NAMES = ("ByteLevel", "Sequence", "Split", "NFC")
SPOILT = st.sampled_from(
    [None, True, -1, 7, 2**70, 0.5, "", "x", "\ud800", *NAMES, [], [1], [[]], {}, {"type": "ByteLevel"}, {"type": []}]
)


@pytest.mark.parametrize("pre", [{"type": "Sequence", "pretokenizers": []}, "Sequence", "ByteLevel", [], {"type": []}])
def test_a_pre_tokenizer_without_steps_is_a_sentence(pre: Any, tmp_path: Path) -> None:
    with pytest.raises(CompatibilityError, match="is not supported, since its pre-tokenizer is "):
        read_target(write_folder(tmp_path / "t", tokenizer=toy_tokenizer() | {"pre_tokenizer": pre}))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_tokenizer_spoilt_anywhere_gives_an_answer_or_a_sentence(data: st.DataObject, tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<pad>"}}],
        "special_tokens": {"<pad>": {"ids": [PAD]}},
    }
    tokenizer = copy.deepcopy(toy_tokenizer() | {"pre_tokenizer": split_by(PATTERNS["qwen2"]), "post_processor": template})
    *path, last = data.draw(st.sampled_from([place for place in places(tokenizer) if place]))
    inner: Any = tokenizer
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(SPOILT)
    try:
        target = read_target(write_folder(tmp_path / "t", tokenizer=tokenizer))
    except Dflash2Error:
        return
    assert target.facts.vocab_size == 37


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_target_whose_bytes_are_spoilt_gives_an_answer_or_a_sentence(
    data: st.DataObject, drafter: Path, target: Path
) -> None:
    whole, changed = bytearray(target.read_bytes()), target.parent / "changed.gguf"
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed.write_bytes(whole)
    try:
        export(drafter, target.parent / "d.gguf", tokenizer_from=changed, outtype="f32")
    except Dflash2Error:
        return
    assert read_header(target.parent / "d.gguf").value("dflash.block_count") == 2
