"""`dflash2 manifest`, and the commands that hold a drafter against its manifest before they open it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from tests.core.cli.test_generate import dflash2

SPOILED = "model.safetensors has the sha256"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The embedded drafter in a place of its own, with a manifest."""
    folder = tmp_path / "drafter"
    shutil.copytree(tiny_pair().drafter, folder)
    assert dflash2("manifest", folder, "--base-model", "org/target", "--revision", "abc").returncode == 0
    return folder


def spoil(drafter: Path) -> None:
    """One bit of the last weight."""
    content = bytearray((drafter / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (drafter / "model.safetensors").write_bytes(content)


def test_it_says_what_was_given_and_what_the_card_says_and_checks_it(drafter: Path) -> None:
    (drafter / "README.md").write_text("---\nlicense: mit\nbase_model: org/other\n---\n")
    done = dflash2("manifest", drafter, "--base-model", "org/target")
    assert done.returncode == 0
    assert "3 files" in done.stdout
    assert "base model org/target, revision not stated, licence mit" in done.stdout
    checked = dflash2("manifest", drafter, "--check")
    assert (checked.returncode, checked.stdout) == (0, "3 files are as the manifest says\n")


def test_a_changed_byte_is_a_finding_of_check_in_words_and_in_json(drafter: Path) -> None:
    spoil(drafter)
    told = dflash2("manifest", drafter, "--check")
    assert told.returncode == 1
    assert told.stdout.startswith(f"differs: {SPOILED}")
    in_json = dflash2("manifest", drafter, "--check", "--json")
    assert in_json.returncode == 1
    document = json.loads(in_json.stdout)
    assert document["num_files"] == 3
    assert len(document["findings"]) == 1


def test_json_of_a_new_manifest_is_the_document_itself(drafter: Path) -> None:
    told = dflash2("manifest", drafter, "--licence", "mit", "--json")
    assert json.loads(told.stdout) == json.loads((drafter / "dflash2_manifest.json").read_text())


def test_without_a_manifest_check_could_not_run(tmp_path: Path) -> None:
    done = dflash2("manifest", tiny_pair().drafter, "--check")
    assert done.returncode == 2
    assert "has no dflash2_manifest.json" in done.stderr


def test_no_manifest_is_written_of_what_is_no_sound_drafter(drafter: Path) -> None:
    (drafter / "dflash2_manifest.json").unlink()
    (drafter / "extra.safetensors").write_bytes(b"x")
    done = dflash2("manifest", drafter)
    assert done.returncode == 2
    assert "extra.safetensors is no part of this checkpoint's weights" in done.stderr
    assert not (drafter / "dflash2_manifest.json").exists()


@pytest.mark.parametrize("command", ["generate", "serve", "export-gguf", "convert"])
def test_a_drafter_that_is_not_as_manifested_is_refused_by_every_command_that_uses_one(
    command: str, drafter: Path, tmp_path: Path
) -> None:
    target, out = tiny_pair().target, tmp_path / "out"
    arguments = {
        "generate": ("hi", "--target", target, "--drafter", drafter),
        "serve": (target, drafter, "--dry-run"),
        "export-gguf": (drafter, "--tokenizer-from", target, "--output", out),
        "convert": (drafter, out, "--to", "zlab"),
    }[command]
    spoil(drafter)
    done = dflash2(command, *arguments)
    assert done.returncode == 2
    assert f"is not what its dflash2_manifest.json says: {SPOILED}" in done.stderr
    assert not out.exists()


def test_a_drafter_as_manifested_drafts(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant asks no manifest: it goes on with a spoiled drafter, as generate would without this."""
    arguments = ("generate", "import os", "--target", tiny_pair().target, "--drafter", drafter, "--json")
    budget = ("--max-new-tokens", "8")
    assert json.loads(dflash2(*arguments, *budget).stdout)["stats"]["num_drafted"] > 0
    spoil(drafter)
    assert dflash2(*arguments, *budget).returncode == 2
    monkeypatch.setattr(sys.modules["dflash2_core.cli.generate"], "as_manifested", lambda path: path)
    assert dflash2(*arguments, *budget).returncode == 0
