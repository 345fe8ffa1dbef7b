"""A running llama-server: from its start until it answers, what it is asked, and its end."""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from os import environ
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engines import Command, EngineOptions, Generated
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.sampling import SamplingParams
from dflash2_llama_cpp.metrics import acceptance
from dflash2_llama_cpp.requests import body, generated

LISTENS = re.compile(r"listening on http://\S+:(\d+)")
POLL, TO_END, TO_ANSWER = 0.05, 20.0, 600.0
"""Seconds: between two looks at a server that starts, until one that was asked to end is killed, for one answer."""
NO_PROXY = build_opener(ProxyHandler({}))
"""What runs on this machine is not asked for through a proxy."""


class LlamaServer:
    """See `dflash2_core.engines.Server`. url: of the server itself; base_url: of its OpenAI API."""

    def __init__(self, command: Command, options: EngineOptions) -> None:
        """Starts `command` and waits until it answers; EngineError with the end of its log where it does not."""
        self.command, self.parallel = command, options.parallel
        self.log = options.log or Path(tempfile.mkdtemp(prefix="dflash2-llama-cpp-")) / "llama-server.log"
        with self.log.open("wb") as log:
            self._process = _run(command, log)
        try:
            self.url = self._until_it_answers(options)
            self.context: int = self.ask("/props")["default_generation_settings"]["n_ctx"]
        except BaseException:
            self.stop()
            raise
        self.base_url = f"{self.url}/v1"

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """See `Server`. With n > 1 a prompt's completions stand beside each other."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise SamplingError(f"{len(prompts)} prompts came with {len(each)} params: expected one for all, or one each")
        bodies = []
        for prompt, asked in zip(prompts, each, strict=True):
            # Where the budget ends a text and not the context, it ends where plain llama.cpp's would: one position stays free.
            room = self.context - len(prompt) - 1
            for i in range(asked.n):
                seed = None if asked.seed is None else asked.seed + i
                bodies.append(body(prompt, replace(asked, n=1, seed=seed), room=room))
        with ThreadPoolExecutor(self.parallel) as threads:
            return [generated(answer) for answer in threads.map(lambda asked: self.ask("/completion", asked), bodies)]

    def acceptance(self) -> AcceptanceStats:
        """See `Server`, and `metrics.acceptance` for what llama.cpp counts."""
        return acceptance(self._fetch("/metrics", None))

    def ask(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        """The server's JSON answer at `path`, to a GET, or to a POST of `asked`; EngineError where it gives none."""
        return json.loads(self._fetch(path, asked))

    def stop(self) -> None:
        """See `Server`."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TO_END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _until_it_answers(self, options: EngineOptions) -> str:
        deadline = time.monotonic() + options.ready_within
        port = options.port or None
        while time.monotonic() < deadline:
            if self._ended_within(POLL):
                raise EngineError(f"llama-server ended with code {self._process.returncode} before it answered; {self._told()}")
            port = port or self._stated_port()
            if port is not None and _is_healthy(url := f"http://{options.host}:{port}"):
                return url
        raise EngineError(f"llama-server did not answer within {options.ready_within:g} seconds; {self._told()}")

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _stated_port(self) -> int | None:
        found = LISTENS.search(self.log.read_text(errors="replace"))
        return None if found is None else int(found[1])

    def _fetch(self, path: str, asked: dict[str, Any] | None) -> str:
        data = None if asked is None else json.dumps(asked).encode()
        request = Request(f"{self.url}{path}", data=data, headers={"Content-Type": "application/json"})
        try:
            with NO_PROXY.open(request, timeout=TO_ANSWER) as answer:
                return str(answer.read().decode())
        except HTTPError as refused:
            raise EngineError(f"llama-server refused {path}: {_message(refused)}") from None
        except (OSError, HTTPException) as problem:
            code = self._process.poll()
            state = "it still runs" if code is None else f"it ended with code {code}"
            raise EngineError(f"llama-server gave no answer at {path} ({problem}; {state}); {self._told()}") from None

    def _told(self) -> str:
        last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        return f"its log {self.log} ends with: {' | '.join(last) or 'nothing'}"


def _run(command: Command, log: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ | dict(command.env))
    except OSError as problem:
        raise EngineError(f"{command.argv[0]} cannot be run: {problem.strerror or problem}") from None


def _is_healthy(url: str) -> bool:
    try:
        with NO_PROXY.open(f"{url}/health", timeout=TO_END) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # not yet, or still loading (503)
        return False


def _message(refused: HTTPError) -> str:
    said = refused.read().decode(errors="replace")
    try:
        return str(json.loads(said)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return said or str(refused)
