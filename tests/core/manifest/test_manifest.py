"""A drafter's manifest: what it says, and that nothing of a drafter changes unseen."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dflash2_core import save_drafter
from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.conversion import convert, open_source
from dflash2_core.errors import CheckpointError
from dflash2_core.manifest import NAME, Manifest, ManifestError, checking, differences, require_as_manifested
from tests.core.toys import random_drafter

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A drafter with a card, a file in a folder of its own, and a manifest of all of it."""
    path = tmp_path / "drafter"
    save_drafter(random_drafter(layer_windows=(4, 4)), path)
    (path / "README.md").write_text("---\nlicense: mit\n---\n")
    (path / "logs").mkdir()
    (path / "logs/train.jsonl").write_text("{}\n")
    written(path)
    return path


def written(path: Path, **stated: Any) -> Manifest:
    found = Manifest.of(path, open_checkpoint(path).config, **stated)
    found.write(path)
    return found


def append(name: str) -> Change:
    return lambda folder: (folder / name).open("ab").write(b" ")


def flip(name: str, at: int = -1) -> Change:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 1
        (folder / name).write_bytes(content)

    return change


def add(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes(b"weights")


def test_it_says_sha256_and_size_of_every_file_and_what_the_drafter_is(folder: Path) -> None:
    found = written(folder, base_model="org/target", base_model_revision="abc123", licence="mit")
    document = json.loads((folder / NAME).read_text())
    assert document["files"] == {
        name: {"sha256": sha256((folder / name).read_bytes()).hexdigest(), "size": (folder / name).stat().st_size}
        for name in ("README.md", "config.json", "logs/train.jsonl", "model.safetensors")
    }
    assert document["drafter"] == {"version": 2, "block_size": 8, "num_drafts": 7, "target_layer_ids": [0, 2, 4]}
    stated = ("base_model", "base_model_revision", "licence")
    assert [document[name] for name in stated] == ["org/target", "abc123", "mit"]
    assert Manifest.read(folder) == found


def test_the_same_drafter_gives_the_same_bytes(folder: Path) -> None:
    first = (folder / NAME).read_bytes()
    written(folder)
    assert (folder / NAME).read_bytes() == first


def test_a_drafter_as_it_was_is_accepted_and_one_without_a_manifest_too(folder: Path, tmp_path: Path) -> None:
    assert list(differences(folder)) == []
    require_as_manifested(folder)
    (folder / NAME).unlink()
    append("model.safetensors")(folder)
    require_as_manifested(folder)
    require_as_manifested(tmp_path / "nowhere")
    require_as_manifested(Path("x" * 5000))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (flip("model.safetensors"), "model.safetensors has the sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"),
        (flip("model.safetensors", 60), "model.safetensors has the sha256"),
        (flip("README.md", 5), "README.md has the sha256"),
        (append("config.json"), r"config.json has [\d,]+ bytes, expected"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "logs/train.jsonl").unlink(), "logs/train.jsonl is missing"),
        (add("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors is no file of the manifest"),
        (add("pytorch_model.bin"), "pytorch_model.bin is no file of the manifest"),
        (add("model.safetensors.index.json"), "model.safetensors.index.json is no file of the manifest"),
        (add("logs/more.gguf"), "logs/more.gguf is no file of the manifest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_changed_went_or_came_is_named(change: Change, sentence: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(ManifestError, match=sentence) as raised:
        require_as_manifested(folder)
    assert len(raised.value.problems) == 1
    assert "dflash2 manifest" in str(raised.value)  # the mend


def test_the_mutant_that_compares_sizes_alone_would_miss_a_flipped_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip("model.safetensors")(folder)
    assert len(list(differences(folder))) == 1
    stored = Manifest.read(folder).files
    monkeypatch.setattr(checking, "fingerprint", lambda path: stored[path.relative_to(folder).as_posix()])
    assert list(differences(folder)) == []


def test_every_difference_is_told_at_once(folder: Path) -> None:
    for change in (flip("model.safetensors"), append("config.json"), add("extra.pt")):
        change(folder)
    with pytest.raises(ManifestError) as raised:
        require_as_manifested(folder)
    assert len(raised.value.problems) == 3


def test_a_file_that_cannot_be_weights_may_come_and_hidden_ones_are_not_looked_at(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / ".cache").mkdir()
    (folder / ".cache/part.safetensors").write_bytes(b"half")
    assert list(differences(folder)) == []


def test_a_manifest_of_another_drafter_is_seen_although_all_files_are_right(folder: Path) -> None:
    document = json.loads((folder / NAME).read_text())
    document["drafter"] |= {"block_size": 16, "target_layer_ids": [1, 3]}
    (folder / NAME).write_text(json.dumps(document))
    assert list(differences(folder)) == [
        "it says block_size 16, config.json says 8",
        "it says target_layer_ids [1, 3], config.json says [0, 2, 4]",
    ]


def without(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: {key: value for key, value in document.items() if key not in keys}


def naming(name: str, **entry: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: document | {"files": document["files"] | {name: {"sha256": "0" * 64, "size": 1} | entry}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda document: document | {"manifest_version": 2}, "manifest_version is 2, this dflash2 reads 1"),
        (without("manifest_version"), "manifest_version is None"),
        (without("files"), "files is missing"),
        (without("drafter"), "drafter is missing"),
        (lambda document: document | {"files": ["config.json"]}, "files: expected an object"),
        (lambda document: document | {"surprise": 1}, "surprise is a key this dflash2 does not know"),
        (naming("../../etc/passwd"), "it names '../../etc/passwd'"),
        (naming("/etc/passwd"), "it names '/etc/passwd'"),
        (naming("a/./b"), "it names 'a/./b'"),
        (naming("x", sha256="f00"), "expected 64 hexadecimal digits"),
        (naming("x", size="1"), "expected an integer"),
        (naming("x", md5="0"), "expected sha256 and size"),
    ],
)
def test_a_manifest_that_is_none_is_refused_with_a_sentence(change: Any, sentence: str, folder: Path) -> None:
    document = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps(change(document)))
    with pytest.raises(CheckpointError, match=sentence):
        require_as_manifested(folder)


def test_a_manifest_that_leaves_the_config_out_protects_nothing_and_is_refused(folder: Path) -> None:
    document = json.loads((folder / NAME).read_text())
    del document["files"]["config.json"]
    (folder / NAME).write_text(json.dumps(document))
    assert list(differences(folder)) == ["it says nothing of config.json"]


def test_what_is_converted_gets_a_manifest_of_its_own_for_the_same_target(folder: Path, tmp_path: Path) -> None:
    written(folder, base_model="org/target", base_model_revision="abc123", licence="mit")
    done = convert(open_source(folder), tmp_path / "there", layout="speculators")
    assert list(differences(done.path)) == []
    found = Manifest.read(done.path)
    assert (found.base_model, found.base_model_revision, found.licence) == ("org/target", "abc123", "mit")
    assert set(found.files) == {"README.md", "config.json", "model.safetensors"}
