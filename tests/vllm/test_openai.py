"""vLLM's API server, started by `dflash2 serve`, asked by the `openai` client and in ids."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import SamplingError
from dflash2_core.server_process import NO_PROXY, free_port
from dflash2_vllm.server import VllmServer
from tests.vllm.engines import ENVIRONMENT, NEW_TOKENS, PYTHON, Ran, VllmProcess

DRIVER = Path(__file__).parents[1] / "engines/openai_driver.py"
SERVE = [sys.executable, "-m", "dflash2_core.cli", "serve", str(tiny_pair().target), str(tiny_pair().drafter)]
EXTRA = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20), "--block-size", "32"]
DEADLINE = 600
TEXT = "def read_lines(path):\n"
QUESTIONS = [f"What is {a} + {b}?" for a, b in ((17, 25), (3, 4), (120, 7), (58, 31), (9, 9), (44, 12), (6, 71), (250, 250))]
"""What the driver asks, which can only be imported where the client is."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """`dflash2 serve --engine vllm` in the foreground, until it is ended with SIGTERM."""
    port, log = free_port("127.0.0.1"), tmp_path_factory.mktemp("serve") / "log"
    environment = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    command = [*SERVE, "--engine", "vllm", "--program", PYTHON, "--port", str(port), "--parallel", "8", "--", *EXTRA]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        until_healthy(process, f"http://127.0.0.1:{port}", log)
        yield VllmServer(f"http://127.0.0.1:{port}", EngineOptions(parallel=8), drafts=True)
        assert "--speculative-config" in log.read_text().splitlines()[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.terminate()  # and with it the engine
            process.wait(180)
        process.kill()
        process.wait()


def until_healthy(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            try:
                with NO_PROXY.open(f"{url}/health", timeout=5):
                    return
            except OSError:
                continue
        break
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def driven(server: VllmServer) -> dict[str, Any]:
    done = subprocess.run([PYTHON, DRIVER, server.base_url], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_ids_are_those_of_plain_vllm_and_the_counters_agree(
    server: VllmServer, prompts: list[list[int]], by_plain_vllm: Ran
) -> None:
    before = server.acceptance()
    answers = server.generate_ids(prompts, SamplingParams(max_new_tokens=NEW_TOKENS))
    after = server.acceptance()
    assert [answer.token_ids for answer in answers] == by_plain_vllm.ids
    assert sum(answer.num_drafted for answer in answers) == after.num_drafted - before.num_drafted > 1000
    assert sum(answer.num_accepted for answer in answers) == after.num_accepted - before.num_accepted > 500
    assert sum(after.accepted_per_position) == after.num_accepted
    assert len(after.accepted_per_position) == 7


def test_texts_and_chats_are_those_of_plain_vllm(driven: dict[str, Any], plain: VllmProcess) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair().target)
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        for question in QUESTIONS
    ]
    asked = plain.generate(chats, temperature=0, max_tokens=48)
    texts = [output["choices"][0]["text"] for output in asked.outputs if output]
    for way in ("alone", "concurrent"):
        assert [answer["text"] for answer in driven[way]] == texts
    [output] = plain.generate([tokenizer(TEXT)["input_ids"]], temperature=0, max_tokens=64).outputs
    assert output is not None
    assert driven["text"] == output["choices"][0]["text"]
    assert driven["completion_tokens"] == 64


def test_streams_and_stops_give_the_same_text(driven: dict[str, Any]) -> None:
    assert driven["streamed"] == driven["text"]
    assert driven["num_chunks"] > 10
    assert driven["chat_streamed"] == driven["alone"][0]["text"]
    assert driven["stopped"] == driven["stopped_streamed"] == driven["text"][: driven["text"].index(driven["stop"])]
    assert driven["stopped_reason"] == "stop"


def test_a_seed_gives_its_text_again_and_another_gives_another(server: VllmServer, prompts: list[list[int]]) -> None:
    def written(seed: int, among: int) -> list[int]:
        params = [SamplingParams(temperature=1.0, seed=seed, max_new_tokens=40)]
        params += [SamplingParams(temperature=1.0, max_new_tokens=40)] * among
        return server.generate_ids([prompts[3], *prompts[4 : 4 + among]], params)[0].token_ids

    assert written(5, 0) == written(5, 0) == written(5, 6)
    assert written(6, 0) != written(5, 0)


def test_several_completions_are_those_of_the_seeds_that_follow(server: VllmServer, prompts: list[list[int]]) -> None:
    several = server.generate_ids(prompts[2:3], SamplingParams(temperature=1.0, seed=5, n=3, max_new_tokens=24))
    params = [SamplingParams(temperature=1.0, seed=seed, max_new_tokens=24) for seed in (5, 6, 7)]
    alone = server.generate_ids(prompts[2:3] * 3, params)
    assert [answer.token_ids for answer in several] == [answer.token_ids for answer in alone]


@pytest.mark.parametrize("option", [{"min_p": 0.1}, {"logit_bias": {3: 1.0}}, {"logprobs": 2}, {"speculate": False}])
def test_what_would_not_be_honoured_is_a_sentence(option: dict[str, Any], server: VllmServer) -> None:
    with pytest.raises(SamplingError, match=next(iter(option))):
        server.generate_ids([[5, 6]], SamplingParams(**option))


def test_hits_of_the_prefix_cache_are_told(server: VllmServer, prompts: list[list[int]]) -> None:
    longest = max(prompts, key=len)
    first, second = (server.generate_ids([longest], SamplingParams(max_new_tokens=16))[0] for _ in range(2))
    assert second.num_cached >= 96
    assert second.token_ids == first.token_ids
