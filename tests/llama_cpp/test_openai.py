"""The `openai` client, of the environment that `ci/llama_cpp.sh` makes, sees the same with a drafter as without."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.llama_cpp.conftest import Serve

PYTHON = Path(__file__).parents[2] / ".venvs/llama-cpp/bin/python"
DRIVER = Path(__file__).parents[1] / "engines/openai_driver.py"


def driven(base_url: str) -> dict[str, Any]:
    done = subprocess.run([PYTHON, DRIVER, base_url], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def drafted(serve: Serve) -> dict[str, Any]:
    return driven(serve("bf16", 4).base_url)


@pytest.fixture(scope="module")
def plain(serve: Serve) -> dict[str, Any]:
    return driven(serve(None, 4).base_url)


def test_drafts_were_made_and_kept_in_every_chat(drafted: dict[str, Any], plain: dict[str, Any]) -> None:
    for way in ("alone", "concurrent"):
        assert all(answer["drafted"] > 0 for answer in drafted[way])
        assert sum(answer["accepted"] > 0 for answer in drafted[way]) > len(drafted[way]) / 2
        assert not any(answer["drafted"] for answer in plain[way])


def test_a_completion_is_that_of_plain_llama_cpp(drafted: dict[str, Any], plain: dict[str, Any]) -> None:
    assert drafted["text"] == plain["text"]
    assert drafted["completion_tokens"] == plain["completion_tokens"] == 64


def test_a_stream_gives_the_whole_text_in_pieces(drafted: dict[str, Any]) -> None:
    assert drafted["streamed"] == drafted["text"]
    assert drafted["num_chunks"] > 10


def test_a_stop_string_cuts_where_plain_llama_cpp_cuts(drafted: dict[str, Any], plain: dict[str, Any]) -> None:
    text, stop = drafted["text"], drafted["stop"]
    assert stop
    assert drafted["stopped"] == drafted["stopped_streamed"] == plain["stopped"] == text[: text.index(stop)]
    assert drafted["stopped_reason"] == "stop"


def test_a_seed_gives_the_text_of_plain_llama_cpp(drafted: dict[str, Any], plain: dict[str, Any]) -> None:
    assert drafted["sampled"] == plain["sampled"]


def test_chats_at_once_give_what_each_gives_alone(drafted: dict[str, Any], plain: dict[str, Any]) -> None:
    def seen(answers: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
        return [(answer["text"], answer["finish_reason"], answer["completion_tokens"]) for answer in answers]

    assert seen(drafted["concurrent"]) == seen(drafted["alone"]) == seen(plain["alone"]) == seen(plain["concurrent"])


def test_a_streamed_chat_gives_the_whole_answer(drafted: dict[str, Any]) -> None:
    assert drafted["chat_streamed"] == drafted["alone"][0]["text"]


def test_the_model_is_listed(drafted: dict[str, Any]) -> None:
    assert drafted["models"] == 1
