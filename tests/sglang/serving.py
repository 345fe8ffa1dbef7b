"""`dflash2 serve --engine sglang` in the foreground: started, asked, and ended as Ctrl-C in a terminal ends it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import EngineError
from dflash2_core.server_process import free_port
from dflash2_sglang.server import SglangServer
from tests.engines.pair import thirty_prompts
from tests.engines.signals import heard
from tests.sglang.asking import LOGPROBS, Answer, ask
from tests.sglang.servers import ENVIRONMENT, PARALLEL, PYTHON, SMALL

CHAT = {"model": "default", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0, "max_tokens": 24}
TO_START, TO_END = 600, 180


@dataclass(frozen=True)
class Served:
    """What one run of `dflash2 serve` did, in bfloat16.

    printed  the command, as its standard output says it; ran: what really ran
    answers  to the thirty prompts, with log-probabilities; chat: of the OpenAI API; drafted: as `Server.acceptance` has it
    code     that it ended with; log: all that it and SGLang said; left: processes of it that were there still
    """

    printed: list[str]
    ran: list[str]
    answers: list[Answer]
    chat: dict[str, Any]
    code: int
    log: str
    left: list[int]


def serve_and_end(log: Path) -> Served:
    port, pair = free_port("127.0.0.1"), tiny_pair()
    command: list[str | Path] = [sys.executable, "-m", "dflash2_core.cli", "serve", pair.target, pair.drafter]
    command += ["--engine", "sglang", "--program", PYTHON, "--port", str(port), "--parallel", str(PARALLEL)]
    command += ["--", "--dtype", "bfloat16", *SMALL]
    with log.open("wb") as out:
        with heard():
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | ENVIRONMENT, start_new_session=True)
        try:
            server = _once_it_answers(process, port)
            _, child = _children(process.pid)  # who watches SGLang, and SGLang
            ran = Path(f"/proc/{child}/cmdline").read_text().split("\0")[:-1]
            answers, chat = ask(server, thirty_prompts(), {}, **LOGPROBS), server.ask("/v1/chat/completions", CHAT)
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(TO_END)
            left = _of_groups({process.pid, child})
        finally:
            for group in (*_children(process.pid), process.pid):
                with suppress(ProcessLookupError):  # nothing is left of it
                    os.killpg(group, signal.SIGKILL)
            process.wait()
    said = log.read_text()
    return Served(shlex.split(said.splitlines()[0]), ran, answers, chat, code, said, left)


def _once_it_answers(process: "subprocess.Popen[bytes]", port: int) -> SglangServer:
    deadline = time.monotonic() + TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return SglangServer(f"http://127.0.0.1:{port}", EngineOptions(parallel=PARALLEL))
        except EngineError:
            time.sleep(0.5)
    raise AssertionError(f"it does not answer; code {process.poll()}")


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _of_groups(groups: set[int]) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:  # it has just ended
                continue
            if int(of) in groups and state != "Z":
                found.append(int(folder.name))
    return found
