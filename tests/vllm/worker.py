"""vLLM in one process, run in its own environment: `python worker.py ARGUMENTS ANSWERS [PRELUDE]`.

ARGUMENTS is what `vllm.LLM` takes, as JSON; the parent writes one JSON object a line to standard input and reads one answer a
line from the file descriptor ANSWERS. Nothing of vLLM is replaced here but by what PRELUDE and the job `mutate` name.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import vllm
import vllm.envs
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
PREFIX = "vllm:spec_decode_num_"


def another_version() -> None:
    """What touches nothing but the number."""
    vllm.__version__ = "0.31.9"


def another_hook() -> None:
    """A method that takes something else."""
    from vllm.v1.spec_decode.dflash import DFlashProposer

    DFlashProposer.set_inputs_first_pass = lambda self, batch: batch


PRELUDES = {prelude.__name__: prelude for prelude in (another_version, another_hook)}


class Worker:
    """One engine, and what is asked of it. A job is a method; what it returns is the answer."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.llm = LLM(**arguments, disable_log_stats=False)
        self.ids, self.spent = count(), None
        self.proposals: list[tuple[str, int, list[int]]] = []
        self.most_rows = 0
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        if hasattr(self.runner, "drafter"):
            self.runner.drafter.propose = self._noting(self.runner.drafter.propose)

    def generate(self, requests: list[dict[str, Any]], abort: dict[str, int] | None = None) -> dict[str, Any]:
        """requests: {"prompt": ids, ...SamplingParams}, with "joins": after how many steps; abort: index -> after how many."""
        names = {f"{next(self.ids)}": i for i, _ in enumerate(requests)}
        before, self.proposals, self.most_rows = self.counters(), [], 0
        preemptions = self._counting_preemptions()
        waiting = dict(zip(names, requests, strict=True))
        finished, steps, begin = {}, 0, time.perf_counter()
        with preemptions as preempted:
            while waiting or self.llm.llm_engine.has_unfinished_requests():
                for name in [name for name, request in waiting.items() if request.get("joins", 0) <= steps]:
                    self._add(name, waiting.pop(name))
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        finished[output.request_id] = output
                steps += 1
                gone = [name for name, i in names.items() if (abort or {}).get(str(i)) == steps]
                if gone:
                    self.llm.llm_engine.abort_request(gone)
        return {
            "outputs": [_told(finished.get(name)) for name in names],
            "proposals": [[names[base], at, drafts] for name, at, drafts in self.proposals if (base := _own(name)) in names],
            "preemptions": len(preempted),
            "steps": steps,
            "most_rows": self.most_rows,
            "seconds": time.perf_counter() - begin,
            **{key: value - before[key] for key, value in self.counters().items()},
        }

    def _add(self, name: str, request: dict[str, Any]) -> None:
        options = {key: value for key, value in request.items() if key != "joins"}
        prompt = {"prompt_token_ids": options.pop("prompt")}
        if (schema := options.pop("json_schema", None)) is not None:
            options["structured_outputs"] = StructuredOutputsParams(json=schema)
        params = SamplingParams(**options, output_kind=RequestOutputKind.FINAL_ONLY)
        self.llm.llm_engine.add_request(name, prompt, params)

    def counters(self) -> dict[str, int]:
        """vLLM's own, since the start."""
        found = {metric.name: metric for metric in self.llm.get_metrics()}
        return {name: int(found[PREFIX + name].value) if PREFIX + name in found else 0 for name in COUNTERS}

    def reset_prefix_cache(self) -> bool:
        return bool(self.llm.reset_prefix_cache())

    def mutate(self, name: str) -> None:
        """Leave a fault in, or put one in; `sound` takes it out again. See `mutants.py`."""
        from mutants import MUTANTS

        MUTANTS[name](self.runner)

    def configure(self, v2: bool | None = None, **arguments: Any) -> dict[str, Any]:
        """The config that these arguments of vLLM come to, no engine of it; and what the plugin said.

        v2: what VLLM_USE_V2_MODEL_RUNNER says, which an engine that has started reads no more
        """
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("vllm.dflash2").addHandler(handler)
        try:
            with patch.object(vllm.envs, "VLLM_USE_V2_MODEL_RUNNER", v2, create=True):
                spec = EngineArgs(**arguments).create_engine_config().speculative_config
        except Exception as problem:
            return {"refused": str(problem), "said": lines}
        finally:
            logging.getLogger("vllm.dflash2").removeHandler(handler)
        if spec is None:
            return {"refused": None, "said": lines, "spec": None}
        draft = spec.draft_model_config.hf_config
        told = {name: getattr(draft, name, None) for name in ("dflash_config", "layer_types", "sliding_window", "is_causal")}
        options = {name: getattr(spec, name) for name in ("method", "num_speculative_tokens", "draft_sample_method")}
        return {"refused": None, "said": lines, "spec": told | options}

    def parts(self) -> dict[str, float]:
        """Seconds spent in each part of a step since this was asked last; the first time it begins to count."""
        from timing import Parts

        if self.spent is None:
            self.spent = Parts(self.runner)
        return self.spent.taken()

    def facts(self) -> dict[str, Any]:
        """What this process found and did."""
        from dflash2_vllm import hooks

        mended = (hooks.NORMALIZE, hooks.EXPAND, hooks.TOP_K, hooks.SAMPLE, hooks.BOOKKEEPING)
        return {
            "hooks": dict(hooks.states()),
            "where": {place: hooks.find(place).__code__.co_filename for place in mended},
            "proposer": type(getattr(self.runner, "drafter", None)).__name__,
            "v2": os.environ.get("VLLM_USE_V2_MODEL_RUNNER"),
            "draft_sample_method": getattr(self.runner.speculative_config, "draft_sample_method", None),
        }

    def _noting(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            drafts = propose(*args, **kwargs)
            rows = drafts if isinstance(drafts, list) else drafts.tolist()
            self.most_rows = max(self.most_rows, len(rows))
            block = 1 + self.runner.num_spec_tokens
            anchors = self.runner.drafter.positions[: len(rows) * block : block].tolist()
            read_on = self.runner.discard_request_mask.np  # in the middle of a prompt: nobody takes these drafts
            for i, (name, at, row) in enumerate(zip(self.runner.input_batch.req_ids, anchors, rows, strict=False)):
                if not read_on[i]:
                    self.proposals.append((name, at, row))
            return drafts

        return noted

    @contextmanager
    def _counting_preemptions(self) -> Iterator[list[str]]:
        preempt, seen = self.scheduler._preempt_request, []

        def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(request.request_id)
            return preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = counted
        try:
            yield seen
        finally:
            self.scheduler._preempt_request = preempt


def _own(name: str) -> str:
    """The name that a request was given: vLLM appends to it, and puts an index before it where n > 1."""
    return name.split("-")[0].split("_")[-1]


def _told(output: Any) -> dict[str, Any] | None:
    if output is None:
        return None
    return {
        "num_cached": output.num_cached_tokens or 0,
        "choices": [
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "logprobs": None
                if choice.logprobs is None
                else [{str(token): entry.logprob for token, entry in place.items()} for place in choice.logprobs],
            }
            for choice in output.outputs
        ],
    }


def main() -> None:
    if len(sys.argv) > 3:
        PRELUDES[sys.argv[3]]()
    with os.fdopen(int(sys.argv[2]), "w") as answers:
        worker = Worker(json.loads(sys.argv[1]))
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            answer = getattr(worker, job.pop("job"))(**job)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
