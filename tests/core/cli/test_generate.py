"""`dflash2 generate` as its user meets it: its output and its exit code."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_core.cli import main

Done = subprocess.CompletedProcess[str]


def in_a_process(*arguments: str) -> Done:
    """The command as a shell starts it."""
    command = [sys.executable, "-m", "dflash2_core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def dflash2(*arguments: str | Path, stdin: str = "") -> Done:
    """The same entry point without starting Python anew, which takes most of a command's time."""
    command = ["dflash2", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", command),
        mock.patch("sys.stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = 0 if ended.value.code is None else ended.value.code
    assert isinstance(code, int), f"ended with {code!r}"
    return Done(command, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def compared() -> Done:
    return in_a_process("generate", "--compare", "--max-new-tokens", "48")


def test_without_a_prompt_it_shows_three_examples_and_one_line_that_sums_up(compared: Done) -> None:
    assert compared.returncode == 0, compared.stderr
    last = compared.stdout.splitlines()[-1]
    assert last.startswith("identical: 3 of 3 · ")
    assert "tokens per target pass" in last


def test_it_shows_acceptance_by_position_and_tokens_per_second(compared: Done) -> None:
    for words in ("acceptance length", "by position", "per second", "identical to plain decoding"):
        assert words in compared.stdout


def test_it_says_nothing_else(compared: Done) -> None:
    assert compared.stderr == ""


def test_json_has_the_documented_keys_and_nothing_around_it() -> None:
    done = dflash2("generate", "import os\n", "--compare", "--json", "--max-new-tokens", "40")
    answer = json.loads(done.stdout)
    assert set(answer) == {"text", "token_ids", "finish_reason", "plain_identical", "stats", "timing"}
    documented = {"num_cycles", "num_drafted", "num_accepted", "accepted_per_position", "mean_acceptance_length"}
    assert documented <= set(answer["stats"])
    assert answer["plain_identical"] is True
    assert answer["stats"]["num_accepted"] == sum(answer["stats"]["accepted_per_position"]) > 0
    assert len(answer["token_ids"]) <= 40


def test_several_prompts_make_a_list() -> None:
    answers = json.loads(dflash2("generate", "a = 1\n", "b = 2\n", "--json", "--max-new-tokens", "8").stdout)
    assert len(answers) == 2
    assert answers[0]["plain_identical"] is None, "nothing was compared"


def test_a_prompt_may_come_from_standard_input() -> None:
    from_pipe = dflash2("generate", "-", "--json", "--max-new-tokens", "8", stdin="import os\n")
    as_argument = dflash2("generate", "import os\n", "--json", "--max-new-tokens", "8")
    assert json.loads(from_pipe.stdout)["token_ids"] == json.loads(as_argument.stdout)["token_ids"]


def test_a_seed_makes_sampled_text_repeatable() -> None:
    options = ("generate", "def f(", "--json", "--temperature", "0.8", "--max-new-tokens", "24")
    runs = [json.loads(dflash2(*options, "--seed", seed).stdout)["token_ids"] for seed in ("1", "1", "2")]
    assert runs[0] == runs[1] != runs[2]


def test_text_is_printed_as_it_is() -> None:
    """As a process, whose output is a pipe: neither names of emoji nor tabs nor long lines are changed."""
    prompts = [":key: and :smile:\tx", "if a:\n\tb = 1", "a\x0cb\x08c\rd", "word " * 40]
    command = [sys.executable, "-m", "dflash2_core.cli", "generate", *prompts, "--max-new-tokens", "8"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    for prompt in prompts:
        written = json.loads(dflash2("generate", prompt, "--json", "--max-new-tokens", "8").stdout)["text"]
        assert (prompt + written).encode() in printed


def test_an_output_that_lacks_characters_is_no_reason_to_stop() -> None:
    command = [sys.executable, "-m", "dflash2_core.cli", "generate", "漢字", "--max-new-tokens", "8"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"\\u6f22" in done.stdout


@pytest.mark.parametrize("where", ["argument", "standard input"])
def test_a_prompt_that_is_no_text_ends_with_a_sentence(where: str) -> None:
    command = [sys.executable.encode(), b"-m", b"dflash2_core.cli", b"generate"]
    command.append(b"\xff" if where == "argument" else b"-")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=b"\xff", capture_output=True, check=False, env=environment)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"UTF-8" in done.stderr


def test_without_transformers_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; from dflash2_core.cli import main; main()"
    for command in (["generate", "x"], ["train", "--target", "t", "--prompts", "p", "--output", "o", "--steps", "1"]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "pip install 'dflash2[transformers]'" in done.stderr


def test_block_size_1_says_that_drafting_is_off() -> None:
    done = dflash2("generate", "def f(", "--block-size", "1", "--max-new-tokens", "8")
    assert done.returncode == 0
    assert "drafting is off" in done.stderr


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    empty = tmp_path / "empty"
    empty.mkdir()
    nonsense = tmp_path / "nonsense"
    nonsense.mkdir()
    (nonsense / "config.json").write_text("{not json")
    file = tmp_path / "file.txt"
    file.write_text("hello")
    return {"empty": empty, "nonsense": nonsense, "file": file, "missing": tmp_path / "missing"}


@pytest.mark.parametrize("option", ["--target", "--drafter"])
@pytest.mark.parametrize("wrong", ["empty", "nonsense", "file", "missing"])
def test_a_wrong_folder_ends_with_a_sentence(option: str, wrong: str, files: dict[str, Path]) -> None:
    refused(dflash2("generate", "x", option, files[wrong]), files[wrong].name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "nan"), "temperature"),
        (("--top-p", "0"), "top_p"),
        (("--top-p", "1.5"), "top_p"),
        (("--min-p", "2"), "min_p"),
        (("--top-k", "-3"), "top_k"),
        (("--max-new-tokens", "0"), "max_new_tokens"),
        (("--block-size", "9"), "at most 8"),
        (("--block-size", "0"), "at least 1"),
        (("--dtype", "int8"), "dtype"),
        (("--device", "nowhere"), "device"),
        (("--seed", "99999999999999999999999"), "seed"),
        (("--compare", "--temperature", "1"), "temperature 0"),
        (("--max-new-tokens", "many"), "max-new-tokens"),
    ],
)
def test_a_bad_option_ends_with_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    refused(dflash2("generate", "x", *arguments), words)


def test_an_empty_prompt_ends_with_a_sentence() -> None:
    refused(dflash2("generate", ""), "empty")


def test_a_prompt_past_the_context_ends_with_both_numbers() -> None:
    refused(dflash2("generate", "-", stdin="x = 1\n" * 5000), "2048")


def test_swapped_folders_are_told_apart() -> None:
    pair = tiny_pair()
    refused(dflash2("generate", "x", "--drafter", pair.target), str(pair.target))
    refused(dflash2("generate", "x", "--target", pair.drafter), str(pair.drafter))


def refused(done: Done, words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    said = " ".join(done.stderr.split())
    assert words in said
    assert "Traceback" not in done.stderr
