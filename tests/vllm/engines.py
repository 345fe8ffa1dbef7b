"""vLLM's processes as the tests see them: started with arguments, asked in JSON."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dflash2_core.assets import tiny_pair

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs/vllm/bin/python"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "DFLASH2_VLLM": "auto",
}
LIMIT, NEW_TOKENS = 320, 64
EXACT = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 256 << 20, "max_model_len": LIMIT}
DRAFTED = {"method": "dflash", "model": str(tiny_pair().drafter)}


@dataclass(frozen=True)
class Ran:
    """What a batch of requests came to; what is not said here are counts.

    proposals  of each request {position of the anchor: drafts}
    most_rows  requests that were drafted for at once
    """

    outputs: list[dict[str, Any] | None]
    proposals: list[dict[int, list[int]]]
    preemptions: int
    steps: int
    most_rows: int
    seconds: float
    drafts: int
    draft_tokens: int
    accepted_tokens: int

    @property
    def ids(self) -> list[list[int]]:
        """Of the first choice of each request; [] for one that was aborted."""
        return [[] if output is None else output["choices"][0]["token_ids"] for output in self.outputs]

    @property
    def acceptance_length(self) -> float:
        """Bonus included."""
        return 1 + self.accepted_tokens / self.drafts


class VllmProcess:
    """`worker.py` with these arguments of `vllm.LLM`; a context manager."""

    def __init__(
        self, log: Path, *, environment: dict[str, str] | None = None, prelude: str | None = None, **arguments: Any
    ) -> None:
        arguments = {"model": str(tiny_pair().target), **EXACT, **arguments}
        answers, theirs = os.pipe()
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    PYTHON,
                    Path(__file__).with_name("worker.py"),
                    json.dumps(arguments),
                    str(theirs),
                    *([prelude] if prelude else []),
                ],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=(theirs,),
                env=os.environ | ENVIRONMENT | (environment or {}),
                text=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(answers)
        self._read()

    def ask(self, job: str, **options: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps({"job": job, **options}), file=self._process.stdin, flush=True)
        return self._read()

    def generate(self, prompts: Sequence[Sequence[int]], abort: dict[int, int] | None = None, **params: Any) -> Ran:
        """All at once; params: SamplingParams of all."""
        return self.run([{"prompt": list(prompt), **params} for prompt in prompts], abort)

    def run(self, requests: list[dict[str, Any]], abort: dict[int, int] | None = None) -> Ran:
        """Each {"prompt": ids, ...SamplingParams}, with "joins": after how many steps; abort: index -> after how many."""
        answer = self.ask("generate", requests=requests, abort=abort)
        proposals: list[dict[int, list[int]]] = [{} for _ in requests]
        for index, position, drafts in answer.pop("proposals"):
            if drafts:
                proposals[index][position] = drafts
        return Ran(proposals=proposals, **answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()

    def _read(self) -> Any:
        line = self._answers.readline()
        if not line:
            self._process.wait(60)
            raise RuntimeError("vLLM ended; its log says:\n" + "\n".join(self.log.read_text().splitlines()[-40:]))
        return json.loads(line)
