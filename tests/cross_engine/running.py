"""The three engines on the embedded pair, in float32, as `dflash2 serve` starts them: a process a side, kept for all tests."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import Command, Engine, EngineOptions, Server, find_engine

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "vllm": ROOT / ".venvs/vllm/bin/python",
    "sglang": ROOT / ".venvs/sglang/bin/python",
    "llama-cpp": ROOT / ".venvs/llama-cpp/bin/llama-server",
}
ENGINES = tuple(PROGRAMS)
SMALL = ("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", "300000000")
FLOAT32 = {
    "vllm": (
        "--dtype",
        "float32",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "0.1",
        "--kv-cache-memory-bytes",
        "300000000",
    ),
    "sglang": ("--dtype", "float32", "--max-total-tokens", "20000", "--mem-fraction-static", "0.2", "--sleep-on-idle"),
    "llama-cpp": ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32"),
}
PLAIN = {"sglang": ("--disable-overlap-schedule",)}
"""With overlap SGLang's own penalties are a token late where it does not draft (adapters/dflash2_sglang/UPSTREAM.md)."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PARALLEL, CONTEXT = 8, 512


class Running:
    """Servers, started when first asked for. folder: their logs, and the files that llama.cpp is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._servers: dict[tuple[str, bool], Server] = {}

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def engine(self, name: str) -> Engine:
        """By its adapter, with the program that `ci/` put there."""
        return find_engine(name, PROGRAMS[name])

    def server(self, name: str, *, drafts: bool) -> Server:
        """The target alone, or with its drafter."""
        if (name, drafts) not in self._servers:
            drafter = tiny_pair().drafter if drafts else None
            self._servers[name, drafts] = self._stack.enter_context(self.started(name, drafter))
        return self._servers[name, drafts]

    def options(self, name: str, *, log: str = "log", num_drafts: int | None = None) -> EngineOptions:
        """For a server in float32."""
        return EngineOptions(
            parallel=PARALLEL,
            context=CONTEXT,
            num_drafts=num_drafts,
            drafter_dtype="f32" if name == "llama-cpp" else None,
            cache=self.folder,
            log=self.folder / log,
            extra=FLOAT32[name],
        )

    def command(self, name: str, target: Path, drafter: Path | None, *, num_drafts: int | None = None) -> Command:
        """What would be run, or the refusal."""
        return self.engine(name).command(target, drafter, self.options(name, num_drafts=num_drafts))

    @contextmanager
    def started(self, name: str, drafter: Path | None) -> Iterator[Server]:
        """A server of its own."""
        log = f"{name}-{drafter.name if drafter else 'plain'}.log"
        options = self.options(name, log=log)
        if drafter is None:
            options = replace(options, extra=(*options.extra, *PLAIN.get(name, ())))
        with patch.dict(os.environ, ENVIRONMENT):
            server = self.engine(name).start(tiny_pair().target, drafter, options)
        with server:
            yield server
