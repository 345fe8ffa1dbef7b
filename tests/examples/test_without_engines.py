"""The examples that need no other engine."""

import json
from pathlib import Path

import pytest

from dflash2_core import load_drafter
from gguf_export import examine
from tests.examples.running import ROOT, acceptance_length, run


def test_generate_writes_the_targets_text_with_drafts() -> None:
    said = run("generate.py")
    assert said.startswith("def read_lines(path):\n")
    assert "identical to plain decoding: True" in said
    assert acceptance_length(said) > 2
    first, second = (line.partition(": ")[2] for line in said.splitlines() if line.startswith("sampled with seed"))
    assert first != second


def test_export_gguf_writes_files_that_read_as_sound_drafters(tmp_path: Path) -> None:
    said = run("export_gguf.py", "--output", tmp_path, "f32", "q8_0")
    assert said.count("sound") == 2
    found = {path.name: examine(path) for path in tmp_path.iterdir()}
    assert sorted(found) == ["drafter-f32.gguf", "drafter-q8_0.gguf"]
    assert all(each.config is not None and each.config.block_size == 8 for each in found.values())


def test_train_drafter_leaves_a_drafter_that_drafts(tmp_path: Path) -> None:
    said = run("train_drafter.py", "--output", tmp_path / "run")
    assert load_drafter(tmp_path / "run" / "drafter").config.block_size == 8
    assert acceptance_length(said) > 1


def test_verify_before_rollout_says_yes_and_leaves_a_report(tmp_path: Path) -> None:
    said = run("verify_before_rollout.py", "--tokens", "500", "--report", tmp_path / "verify.html")
    assert "\nroll it out" in said
    assert acceptance_length(said) > 1
    assert "lossless" in (tmp_path / "verify.html").read_text()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_says_first_how_it_is_run(example: Path) -> None:
    lines = example.read_text().splitlines()
    assert 20 <= len(lines) <= 60
    assert lines[0].startswith('"""')
    assert any(line.strip().startswith(f"python examples/{example.name}") for line in lines[:6])
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert json.dumps(example.name) in tested, "no test runs it"
