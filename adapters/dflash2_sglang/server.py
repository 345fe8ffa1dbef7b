"""A running server of SGLang, asked in ids."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engines import Command, EngineOptions, Generated
from dflash2_core.sampling import SamplingParams
from dflash2_core.server_process import ServerProcess, each_completion, port_of
from dflash2_sglang.generating import body, generated
from dflash2_sglang.metrics import acceptance


class SglangServer(ServerProcess):
    """See `dflash2_core.engines.Server`."""

    takes_seeds = False

    def __init__(self, source: Command | str, options: EngineOptions) -> None:
        """See `ServerProcess`."""
        port = options.port if isinstance(source, str) else port_of(source)
        super().__init__(source, replace(options, port=port), name="sglang")
        self._acceptance, self._adding = AcceptanceStats(), Lock()

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """See `Server`. With n > 1 a prompt's completions stand beside each other."""
        bodies = [body(prompt, asked) for prompt, asked in each_completion(prompts, params)]
        return self.ask_all(lambda asked: generated(self.generate(asked)), bodies)

    def generate(self, asked: dict[str, Any]) -> Any:
        """SGLang's own answer of /generate."""
        answer = self.ask("/generate", asked)
        with self._adding:
            self._acceptance = AcceptanceStats.total((self._acceptance, acceptance(answer["meta_info"])))
        return answer

    def acceptance(self) -> AcceptanceStats:
        """Over every request that was asked through this object: SGLang tells the drafts of a request in its answer alone."""
        return self._acceptance
