"""`dflash2 train` as its user meets it."""

import json
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from tests.core.cli.test_generate import Done, dflash2

SMALL = ("--max-new-tokens", "12", "--steps", "2", "--documents", "2", "--anchors", "4", "--window", "32", "--device", "cpu")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("import os\nThe sum of 3 and 4\ndef main():\n")
    return path


def train(prompts: Path, output: Path, *options: str) -> Done:
    return dflash2("train", "--target", tiny_pair().target, "--prompts", prompts, "--output", output, *SMALL, *options)


def test_a_run_leaves_a_drafter_that_loads_a_log_and_a_checkpoint_to_go_on_from(prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    done = train(prompts, output, "--heldout", str(prompts), "--start", "target", "--loss", "ce-tv", "--teacher", "target")
    assert done.returncode == 0, done.stderr
    assert dflash2("inspect", output / "drafter").returncode == 0
    written = dflash2("generate", "import os", "--target", tiny_pair().target, "--drafter", output / "drafter", "--compare")
    assert written.returncode == 0, written.stderr
    on = train(prompts, output, "--heldout", str(prompts), "--steps", "3", "--resume", "--loss", "ce-tv", "--teacher", "target")
    assert on.returncode == 0, on.stderr
    records = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    assert records[-1]["heldout"]["acceptance_length"] >= 1


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "0"),
        ("--minutes", "1"),
        ("--documents", "0"),
        ("--learning-rate", "nan"),
        ("--gamma", "0"),
        ("--temperatures", "-1"),
        ("--temperatures", "hot"),
        ("--loss", "l2"),
        ("--start", "nowhere"),
        ("--freeze", "everything"),
        ("--taps", "0,9"),
        ("--layers", "0"),
        ("--block-size", "1"),
        ("--resume",),
    ],
    ids=" ".join,
)
def test_a_bad_option_ends_with_a_sentence_and_code_2(options: tuple[str, ...], prompts: Path, tmp_path: Path) -> None:
    done = train(prompts, tmp_path / "run", *options)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_places_that_cannot_be_written_or_read_end_with_a_sentence(prompts: Path, tmp_path: Path) -> None:
    for done in (train(prompts, prompts), train(tmp_path / "none.txt", tmp_path / "run")):
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
