"""A running API server of vLLM, asked in ids."""

from collections.abc import Sequence
from dataclasses import replace

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engines import Command, EngineOptions, Generated
from dflash2_core.sampling import SamplingParams
from dflash2_core.server_process import ServerProcess, each_completion, port_of
from dflash2_vllm.metrics import acceptance
from dflash2_vllm.requests import body, generated


class VllmServer(ServerProcess):
    """See `dflash2_core.engines.Server`. model: the name that requests give."""

    def __init__(self, source: Command | str, options: EngineOptions, *, drafts: bool) -> None:
        """See `ServerProcess`. drafts: whether it has a drafter."""
        if isinstance(source, Command):
            options = replace(options, port=port_of(source))
        super().__init__(source, options, name="vllm")
        self._drafts = drafts
        try:
            self.model: str = self.ask("/v1/models")["data"][0]["id"]
        except BaseException:
            self.stop()
            raise

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """See `Server`. With n > 1 a prompt's completions stand beside each other."""
        each = each_completion(prompts, params)
        bodies = [body(self.model, prompt, asked, drafts=self._drafts) for prompt, asked in each]
        return self.ask_all(lambda asked: generated(self.ask("/v1/completions", asked)), bodies)

    def acceptance(self) -> AcceptanceStats:
        """See `Server`, and `metrics.acceptance` for what vLLM counts."""
        return acceptance(self.fetch("/metrics"))
