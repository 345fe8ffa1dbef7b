"""A running llama-server, asked in ids."""

import re
from collections.abc import Sequence

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engines import Command, EngineOptions, Generated
from dflash2_core.sampling import SamplingParams
from dflash2_core.server_process import ServerProcess, each_completion
from dflash2_llama_cpp.metrics import acceptance
from dflash2_llama_cpp.requests import body, generated

LISTENS = re.compile(r"listening on http://\S+:(\d+)")


class LlamaServer(ServerProcess):
    """See `dflash2_core.engines.Server`. context: positions of one request."""

    def __init__(self, source: Command | str, options: EngineOptions) -> None:
        """See `ServerProcess`."""
        super().__init__(source, options, name="llama-server", says_port=LISTENS)
        try:
            self.context: int = self.ask("/props")["default_generation_settings"]["n_ctx"]
        except BaseException:
            self.stop()
            raise

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """See `Server`. With n > 1 a prompt's completions stand beside each other."""
        bodies = []
        for prompt, asked in each_completion(prompts, params):
            # Where the budget ends a text and not the context, it ends where plain llama.cpp's would: one position stays free.
            bodies.append(body(prompt, asked, room=self.context - len(prompt) - 1))
        return self.ask_all(lambda asked: generated(self.ask("/completion", asked)), bodies)

    def acceptance(self) -> AcceptanceStats:
        """See `Server`, and `metrics.acceptance` for what llama.cpp counts."""
        return acceptance(self.fetch("/metrics"))
