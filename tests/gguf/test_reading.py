"""Reading a drafter's GGUF: every key and tensor is used or refused by name, whoever wrote the file."""

from pathlib import Path

import pytest
from gguf import GGUFValueType

from dflash2_core.config.limits import SECOND_VERSION_FIELDS
from dflash2_core.errors import CheckpointError, ConfigError, Dflash2Error
from gguf_export import export, read
from gguf_export.header import Key, read_header
from gguf_export.keys import key
from tests.gguf.toys import rewritten, with_value


@pytest.fixture
def gguf(drafter: Path, target: Path, tmp_path: Path) -> Path:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    return tmp_path / "d.gguf"


def told(path: Path) -> str:
    with pytest.raises(Dflash2Error) as raised:
        read(path)
    return str(raised.value)


NEEDED = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "target_layers", "block_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon"),
    *("rope.freq_base", "attention.sliding_window_pattern"),
    *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
)


@pytest.mark.parametrize("name", NEEDED)
def test_a_key_that_is_missing_is_named(name: str, gguf: Path, tmp_path: Path) -> None:
    sentence = told(rewritten(gguf, tmp_path / "less.gguf", without=[f"dflash.{name}"]))
    assert name in sentence if name in SECOND_VERSION_FIELDS else f"dflash.{name}" in sentence
    assert "less.gguf" in sentence


@pytest.mark.parametrize("name", ["tokenizer.ggml.tokens", "tokenizer.ggml.mask_token_id"])
def test_a_tokenizer_without_what_a_drafter_needs_is_named(name: str, gguf: Path, tmp_path: Path) -> None:
    assert name in told(rewritten(gguf, tmp_path / "less.gguf", without=[name]))


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (key("dflash.sample_from_anchor", True), "dflash.sample_from_anchor is a key this project does not know"),
        (key("dflash.rope", 1), "dflash.rope is a key this project does not know"),
        (key("dflash.attention.surprise", 1.0), "dflash.attention.surprise is a key this project does not know"),
        (key("dflash.attention.value_length", 4), "attention.value_length is 4.0: not supported, expected 8"),
        (key("dflash.attention.scale", 0.5), "attention.scale is 0.5: not supported"),
        (key("dflash.attention.value_scale", 0.5), "attention.value_scale is 0.5: not supported"),
        (key("dflash.hidden_activation", "gelu"), "hidden_act is 'gelu': supported is silu"),
        (key("dflash.rope.dimension_count", 4), "rope.dimension_count is 4: not supported"),
        (key("dflash.rope.dimension_sections", [1, 1, 0, 0]), "rope.dimension_sections is [1, 1, 0, 0]"),
        (key("dflash.rope.scaling.type", "longrope"), "rope.scaling.factor is missing"),
        (key("dflash.target_layers", [0, 2]), "target_layer_ids holds -1"),
        (key("dflash.target_layers", [1, 3, 6]), "target_layer_ids holds 5, the target's last layer"),
        (key("dflash.embedding_length", 2**31), "embedding_length: expected an integer from 1 to"),
        (key("dflash.block_count", 10**6), "block_count: expected an integer from 1 to 512"),
        (key("tokenizer.ggml.mask_token_id", 37), "mask_token_id is 37 but vocab_size is 37"),
        (key("dflash.attention.sliding_window_pattern", [True]), "of each of the 2 layers whether it slides"),
        (Key("dflash.attention.causal", GGUFValueType.UINT32, 1), "attention.causal: expected true or false, found 1"),
    ],
    ids=lambda value: value.name if isinstance(value, Key) else "",
)
def test_a_key_that_cannot_be_honoured_is_named(extra: Key, sentence: str, gguf: Path, tmp_path: Path) -> None:
    assert sentence in told(rewritten(gguf, tmp_path / "more.gguf", keys=[extra]))


@pytest.mark.parametrize(
    "extra",
    [
        key("dflash.attention.scale", 8**-0.5),
        key("dflash.attention.value_scale", 1.0),
        key("dflash.hidden_activation", "silu"),
        key("dflash.rope.dimension_count", 8),
        key("dflash.rope.scaling.type", "none"),
        key("dflash.logit_scale", 0.0),
        key("dflash.vocab_size", 37),
        key("general.anything", "else"),
    ],
    ids=lambda extra: extra.name,
)
def test_a_key_that_says_what_is_so_anyway_changes_nothing(extra: Key, gguf: Path, tmp_path: Path) -> None:
    assert read(rewritten(gguf, tmp_path / "more.gguf", keys=[extra]))[0] == read(gguf)[0]


def test_without_a_word_on_causality_a_block_is_not_causal_as_llama_cpp_has_it(gguf: Path, tmp_path: Path) -> None:
    config, _ = read(rewritten(gguf, tmp_path / "less.gguf", without=["dflash.attention.causal"]))
    assert config.layer_causal == (False, False)


def test_a_missing_tensor_is_named(gguf: Path, tmp_path: Path) -> None:
    sentence = told(rewritten(gguf, tmp_path / "less.gguf", without=["blk.1.attn_conv_base", "selector_hidden.weight"]))
    assert "2 of 36 tensors missing: blk.1.attn_conv_base, selector_hidden.weight" in sentence


def test_convolutions_without_their_keys_are_no_dflash_1(gguf: Path, tmp_path: Path) -> None:
    keys = [f"dflash.{name}" for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")]
    assert "DFlash 2 needs convolution and selector" in told(rewritten(gguf, tmp_path / "less.gguf", without=keys))
    unselected = rewritten(gguf, tmp_path / "two.gguf", without=[*keys, "selector_hidden.weight"])
    assert "tensors refused, a DFlash 1 drafter has no place for them: blk.0.attn_conv_base" in told(unselected)


def test_a_tensor_of_another_shape_is_named(gguf: Path, tmp_path: Path) -> None:
    key = with_value(read_header(gguf), "dflash.feed_forward_length", 20)
    sentence = told(rewritten(gguf, tmp_path / "other.gguf", keys=[key]))
    assert "blk.0.ffn_gate.weight has shape [24, 16] but the keys ask for [20, 16]" in sentence


def test_a_targets_gguf_is_no_drafters(target: Path) -> None:
    with pytest.raises(CheckpointError, match="of a model of architecture 'qwen3': expected a drafter's"):
        read(target)


def test_a_part_of_a_split_file_is_refused(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="one part of a split GGUF"):
        read(rewritten(gguf, tmp_path / "part.gguf", keys=[key("split.count", 2)]))


def test_a_file_that_shrinks_while_it_is_open_is_told(gguf: Path) -> None:
    _, tensors = read(gguf)
    gguf.write_bytes(gguf.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="changed while it was open: it ends inside candidate_selector.hidden_projection"):
        list(tensors.values())


def test_all_problems_of_the_keys_are_told_at_once(gguf: Path, tmp_path: Path) -> None:
    path = rewritten(gguf, tmp_path / "less.gguf", without=["dflash.block_count", "dflash.rope.freq_base"])
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert "block_count is missing" in str(raised.value)
    assert "rope.freq_base is missing" in str(raised.value)
