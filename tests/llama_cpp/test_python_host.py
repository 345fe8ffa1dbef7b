"""llama-cpp-python, llama.cpp's second host: the plain baseline in its own process, and a loader of what was exported."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dflash2_core import Completion, DrafterConfig
from dflash2_core.assets import held_out_prompts, tiny_pair
from tests.engines.pair import NEW_TOKENS, drafter
from tests.llama_cpp.conftest import OUTTYPES

PYTHON = Path(__file__).parents[2] / ".venvs/llama-cpp/bin/python"
HOST = Path(__file__).with_name("python_host.py")
STRANGE = ["", " ", "a\u00e9\u4e2d\U0001f600", "\n\n\t x", "<|endoftext|>ab", "0123456789" * 5]


def texts() -> list[str]:
    return [prompt["text"] for prompt in held_out_prompts()] + STRANGE


def hosted(files: Path, outtype: str, prompts: list[list[int]]) -> dict[str, Any]:
    asked = {"texts": texts(), "prompts": prompts, "new_tokens": NEW_TOKENS}
    done = subprocess.run(
        [PYTHON, HOST, files / "target.gguf", files / f"{outtype}.gguf"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def answer(files: Path, prompts: list[list[int]]) -> dict[str, Any]:
    return hosted(files, "f32", prompts)


def test_it_writes_what_the_transformers_engine_writes(answer: dict[str, Any], by_transformers: list[Completion]) -> None:
    assert answer["written"] == [completion.token_ids for completion in by_transformers]


def test_it_reads_every_text_as_the_targets_own_tokenizer_does(answer: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    assert answer["tokenized"] == [tokenizer.encode(text).ids for text in texts()]


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_it_loads_what_was_exported(outtype: str, files: Path) -> None:
    found, config = hosted(files, outtype, [])["drafter"], DrafterConfig.from_pretrained(tiny_pair().drafter)
    assert found["keys"]["general.architecture"] == "dflash"
    assert int(found["keys"]["dflash.block_size"]) == config.block_size
    assert found["embedding"] == config.hidden_size
    assert found["vocabulary"] == config.vocab_size
    assert found["parameters"] == sum(parameter.numel() for parameter in drafter().parameters())
