"""An engine's server as a process: from its start until it answers, what it is asked, and its end.

What every adapter's server has in common; an adapter adds the requests and counters of its own engine.
"""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from dflash2_core.ending import held_back
from dflash2_core.engine_log import told
from dflash2_core.engine_process import TO_END, EngineProcess
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.sampling import SamplingParams

POLL, TO_ANSWER = 0.05, 600.0
"""Seconds: between two looks at a server that starts, for one answer."""
NO_PROXY = build_opener(ProxyHandler({}))
"""What runs here is not asked through a proxy."""

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class ServerProcess:
    """The part of `dflash2_core.engines.Server` that does not depend on the engine.

    name      the engine's program, as it stands in sentences
    url       of the server; base_url: of its OpenAI API
    log       all that it prints; os.devnull for a server that somebody else started
    parallel  requests that are asked at once
    """

    takes_seeds = True

    def __init__(
        self, source: Command | str, options: EngineOptions, *, name: str, says_port: re.Pattern[str] | None = None
    ) -> None:
        """Starts a command and waits until its /health answers; a URL is of a server that runs already, and is left running.

        says_port: where a server that was given port 0 says in its log which port it took; its first group is the number.
        Raises EngineError with what the log says where the server ends, or does not answer in time.
        """
        self.name, self.parallel = name, options.parallel
        self._process: EngineProcess | None = None
        if isinstance(source, str):
            self.log, self.url = Path(os.devnull), source.rstrip("/").removesuffix("/v1")
            if not _is_healthy(self.url):
                raise EngineError(f"no {name} answers at {self.url}/health")
        else:
            self.log = options.log or Path(tempfile.mkdtemp(prefix="dflash2-")) / f"{name}.log"
            try:
                with self.log.open("wb") as log, held_back():
                    self._process = EngineProcess(source, log)
                self.url = self._until_it_answers(self._process, options, says_port)
            except BaseException:
                self.stop()
                raise
        self.base_url = f"{self.url}/v1"

    def ask(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        """The server's JSON answer at `path`, to a GET, or to a POST of `asked`; EngineError where it gives none."""
        return json.loads(self.fetch(path, asked))

    def ask_all(self, ask: Callable[[Asked], Answered], asked: Sequence[Asked]) -> list[Answered]:
        """`ask` of each, `parallel` at once, answers in order."""
        threads = ThreadPoolExecutor(self.parallel)
        try:
            return list(threads.map(ask, asked))
        finally:  # who is ended meanwhile waits for no answer: the server is stopped, and what was asked ends with it
            threads.shutdown(wait=False, cancel_futures=True)

    def fetch(self, path: str, asked: dict[str, Any] | None = None) -> str:
        """As `ask`, the answer as text."""
        data = None if asked is None else json.dumps(asked).encode()
        request = Request(f"{self.url}{path}", data=data, headers={"Content-Type": "application/json"})
        try:
            with NO_PROXY.open(request, timeout=TO_ANSWER) as answer:
                return str(answer.read().decode())
        except HTTPError as refused:
            raise EngineError(f"{self.name} refused {path}: {_message(refused)}") from None
        except (OSError, HTTPException) as problem:
            raise EngineError(f"{self.name} gave no answer at {path} ({problem}){self._state()}") from None

    def stop(self) -> None:
        """Ends it, and what it started; nothing happens when it has ended already."""
        if self._process is not None:
            self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _until_it_answers(self, process: EngineProcess, options: EngineOptions, says_port: re.Pattern[str] | None) -> str:
        deadline = time.monotonic() + options.ready_within
        port = options.port or None
        while time.monotonic() < deadline:
            if _ended_within(process, POLL):
                process.end_group()
                raise EngineError(f"{self.name} ended with code {process.returncode} before it answered; {self._told()}")
            if port is None and says_port is not None:
                port = self._stated_port(says_port)
            if port is not None and _is_healthy(url := f"http://{options.host}:{port}"):
                return url
        raise EngineError(f"{self.name} did not answer within {options.ready_within:g} seconds; {self._told()}")

    def _stated_port(self, says_port: re.Pattern[str]) -> int | None:
        found = says_port.search(self.log.read_text(errors="replace"))
        return None if found is None else int(found[1])

    def _state(self) -> str:
        if self._process is None:
            return ""
        code = self._process.poll()
        if code is not None:
            self._process.end_group()
        return f"; it {'still runs' if code is None else f'ended with code {code}'}; {self._told()}"

    def _told(self) -> str:
        return f"its log {self.log} {told(self.log.read_text(errors='replace'))}"


def each_completion(
    prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[tuple[Sequence[int], SamplingParams]]:
    """A prompt with its params for every completion, n = 1 and with the seed of its own, those of a prompt beside each other.

    params: one for all or one each; SamplingError where the numbers differ
    """
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise SamplingError(f"{len(prompts)} prompts came with {len(each)} params: expected one for all, or one each")
    return [
        (prompt, replace(asked, n=1, seed=None if asked.seed is None else asked.seed + i))
        for prompt, asked in zip(prompts, each, strict=True)
        for i in range(asked.n)
    ]


def port_of(command: Command) -> int:
    """Where a command with `--port` says that it will listen."""
    return int(command.argv[command.argv.index("--port") + 1])


def free_port(host: str) -> int:
    """A port of `host` that was free just now, for an engine that cannot be asked which one it took."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _ended_within(process: EngineProcess, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_healthy(url: str) -> bool:
    try:
        with NO_PROXY.open(f"{url}/health", timeout=TO_END) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException, ValueError):  # not yet, still loading (503), or no URL at all
        return False


def _message(refused: HTTPError) -> str:
    said = refused.read().decode(errors="replace")
    try:
        return str(json.loads(said)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return said or str(refused)
