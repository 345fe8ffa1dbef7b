"""Folders and GGUFs as facts: the embedded pair in both forms, and files that are broken in one way each."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash2_core.assets import tiny_pair
from dflash2_core.diagnosis.checkpoints import drafter_findings, target_findings
from dflash2_core.diagnosis.gguf_files import refusal
from dflash2_core.diagnosis.reading import read_chat_template, read_drafter, read_target, read_tokenizer
from dflash2_core.diagnosis.tokenizers import tokenizer_findings
from dflash2_core.errors import CheckpointError
from dflash2_core.manifest import Manifest
from gguf_export import export
from gguf_export.embedded import write_embedded_target
from tests.core.diagnosis.parts import drafter, target, told
from tests.llama_cpp.spoiling import rebuilt


@pytest.fixture(scope="module")
def gguf_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedded_target(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture(scope="module")
def gguf_drafter(gguf_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafter") / "drafter.gguf"
    export(tiny_pair().drafter, path, tokenizer_from=gguf_target, outtype="bf16")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded drafter in a place of its own."""
    shutil.copytree(tiny_pair().drafter, tmp_path / "drafter")
    return tmp_path / "drafter"


def edited(folder: Path, name: str, **changes: Any) -> Path:
    document = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return folder


def test_the_embedded_pair_is_read_as_what_it_is() -> None:
    assert target().sizes is not None
    assert (target().architecture, target().dtype, target().context_length) == ("Qwen3ForCausalLM", "bfloat16", 2048)
    assert target().tokenizer is not None
    assert len(target().tokenizer.tokens) == 1024
    assert target().tokenizer.tokens[2] == "<|mask|>"
    assert target().chat_template is not None
    assert drafter().config is not None
    assert (drafter().layout, drafter().dtypes, drafter().num_parameters) == ("zlab", {"bf16": 2_406_848}, 2_406_848)
    assert len(drafter().weights) == 36
    assert (drafter().licences, drafter().tokenizer, drafter().manifest, drafter().problems) == (
        {"README.md": "apache-2.0"},
        None,
        None,
        (),
    )


def test_its_ggufs_say_the_same_and_their_tokenizer_is_that_of_the_folder(gguf_target: Path, gguf_drafter: Path) -> None:
    as_gguf, made = read_target(gguf_target), read_drafter(gguf_drafter)
    assert target().sizes is not None
    assert as_gguf.sizes is not None
    assert as_gguf.sizes.hidden_size == target().sizes.hidden_size
    assert (as_gguf.context_length, as_gguf.chat_template) == (2048, target().chat_template)
    assert made.config is not None
    assert drafter().config is not None
    assert made.config.target_layer_ids == drafter().config.target_layer_ids
    assert (made.layout, made.problems, len(made.weights)) == ("gguf", (), 36)
    assert made.tokenizer is not None
    assert told(tokenizer_findings(made, as_gguf)) == {}
    assert told(tokenizer_findings(made, target())) == {}  # a GGUF's against a folder's


def test_a_gguf_with_two_ids_exchanged_is_found_out(gguf_target: Path, gguf_drafter: Path, tmp_path: Path) -> None:
    from gguf_export.header import read_header

    key = read_header(gguf_drafter).keys["tokenizer.ggml.tokens"]
    tokens = list(key.value)
    tokens[100], tokens[200] = tokens[200], tokens[100]
    exchanged = rebuilt(gguf_drafter, tmp_path / "d.gguf", keys=[type(key)(key.name, key.kind, tokens, key.item)])
    found = told(tokenizer_findings(read_drafter(exchanged), read_target(gguf_target)))
    assert "2 of 1024 ids are other pieces, first 100" in found["error"]


@pytest.mark.parametrize(
    "field",
    [
        "dflash.target_layers",
        "dflash.block_size",
        "dflash.selector_top_k",
        "dflash.attention.sliding_window_pattern",
        "tokenizer.ggml.mask_token_id",
    ],
)
def test_a_drafters_gguf_without_a_field_that_it_needs_is_an_error_that_names_it(
    field: str, gguf_drafter: Path, tmp_path: Path
) -> None:
    found = read_drafter(rebuilt(gguf_drafter, tmp_path / "d.gguf", without=[field]))
    assert field.rpartition(".")[2] in told(drafter_findings(found))["error"]
    assert found.config is None


def test_a_targets_gguf_without_its_tokenizer_or_of_a_model_that_cannot_be_tapped_is_an_error(
    gguf_target: Path, tmp_path: Path
) -> None:
    bare = read_target(rebuilt(gguf_target, tmp_path / "t.gguf", without=["tokenizer.ggml.tokens"]))
    assert "tokenizer.ggml.tokens" in told(target_findings(bare))["error"]
    other = read_target(rebuilt(gguf_target, tmp_path / "q.gguf", architecture="qwen2"))
    assert "cannot tap" in told(target_findings(other))["error"]


def test_target_and_drafter_exchanged_are_told(gguf_target: Path, gguf_drafter: Path) -> None:
    assert "this is a drafter's GGUF" in told(target_findings(read_target(gguf_drafter)))["error"]
    assert "architecture is dflash" in told(drafter_findings(read_drafter(gguf_target)))["error"]
    assert "this is a drafter's folder" in told(target_findings(read_target(tiny_pair().drafter)))["error"]
    assert "the config of another model" in told(drafter_findings(read_drafter(tiny_pair().target)))["error"]


def test_a_config_with_a_key_that_nobody_knows_is_an_error_that_names_it(folder: Path) -> None:
    found = read_drafter(edited(folder, "config.json", novel_key=1))
    assert "novel_key" in told(drafter_findings(found))["error"]
    assert found.config is None


def test_a_weight_that_is_no_number_is_found(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["fc.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors")
    assert "no finite numbers in fc.weight" in told(drafter_findings(read_drafter(folder)))["error"]


def test_a_file_cut_short_is_found(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert read_drafter(folder).problems


def test_licence_base_model_and_manifest_are_read(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\nbase_model: org/target\n---\n")
    config = read_drafter(folder).config
    assert config is not None
    Manifest.of(folder, config, licence="mit").write(folder)
    found = read_drafter(folder)
    assert found.licences == {"README.md": "cc-by-nc-nd-4.0", "dflash2_manifest.json": "mit"}
    assert (found.base_model, found.manifest) == ("org/target", ())
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    assert "README.md" in "".join(read_drafter(folder).manifest or ())


def test_a_manifest_that_cannot_be_read_is_told_and_not_raised(folder: Path) -> None:
    (folder / "dflash2_manifest.json").write_text("{}")
    assert "manifest_version" in told(drafter_findings(read_drafter(folder)))["error"]


def test_a_targets_config_without_its_sizes_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(tiny_pair().target, tmp_path / "target")
    found = read_target(edited(tmp_path / "target", "config.json", vocab_size=None))
    assert "config.json names no vocab_size" in told(target_findings(found))["error"]
    (tmp_path / "target" / "config.json").write_text("{")
    assert "not valid JSON" in told(target_findings(read_target(tmp_path / "target")))["error"]


def test_a_tokenizer_of_unigrams_and_merges_in_pairs_are_read(tmp_path: Path) -> None:
    unigrams = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}, "added_tokens": [{"id": 2, "content": "<c>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigrams))
    found = read_tokenizer(tmp_path)
    assert found is not None
    assert (dict(found.tokens), found.merges) == ({0: "a", 1: "b", 2: "<c>"}, None)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}, "merges": [["a", "b"], "c d"]}}))
    found = read_tokenizer(tmp_path)
    assert found is not None
    assert found.merges == ("a b", "c d")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"vocab": 3}}'])
def test_what_is_no_tokenizer_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert read_tokenizer(tmp_path) is None


def test_chat_templates_are_read_wherever_they_stand(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert read_chat_template(tmp_path) == "d"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert read_chat_template(tmp_path) == "own file"


def test_what_is_not_there_could_not_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist: expected the target's folder"):
        read_target(tmp_path / "none")
    with pytest.raises(CheckpointError, match="does not exist: expected the drafter's folder"):
        read_drafter(tmp_path / "none")


def test_a_folder_is_asked_whether_llama_cpp_could_have_it_without_writing_anything(gguf_target: Path, folder: Path) -> None:
    assert refusal(folder, gguf_target) is None
    document = json.loads((folder / "config.json").read_text())
    document["dflash_config"]["mask_token_id"] = 1  # the target's padding
    document["pad_token_id"] = None
    (folder / "config.json").write_text(json.dumps(document))
    found = refusal(folder, gguf_target)
    assert found is not None
    assert "its mask token 1 is the target's padding token" in found


@pytest.mark.parametrize(
    "templates", [[{"name": [], "template": "x"}], [{"template": "x"}, 3], [{"name": "default", "template": []}]]
)
def test_templates_without_a_default_one_are_none(templates: list[Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert read_chat_template(tmp_path) is None


def test_of_several_templates_the_default_one_counts(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert read_chat_template(tmp_path) == "b"


def test_a_tokenizer_that_is_nested_without_an_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * 200_000)
    assert read_tokenizer(tmp_path) is None
