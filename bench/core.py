"""How fast the core is, beside plain decoding and the PyPI package `dflash`: `make bench-core`.

All sides decode the same prompts greedily with the same weights in one process, one after the other, again and again. Every
sample is kept in `bench/core.json`; the summary is of medians.
"""

import argparse
import copy
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.pair import Pair, load, prompt_of, seconds_of
from dflash2_core import Drafter, SamplingParams, TransformersEngine
from dflash2_core.benchmarks.machine import processor
from dflash2_core.drafter import DrafterContext

NEW_TOKENS = 96
CONTEXTS = (64, 512, 2000, 4000)
ROWS = (1, 4, 16)
MORE, MOST = 5, 20
"""Times as many rounds where two sides differ by little, and where by 2 % at most."""
BEFORE = {"plain step": "plain step", "verify": "propose", "propose": "verify", "propose compiled": "verify"}
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)


def whole_runs(pair: Pair, rounds: int) -> None:
    """Tokens per second, prefill included, one request at a time; beside the shortest ones the parts of a cycle, of which the
    bound is made."""
    beside = _parts_after(pair, prompt_of(pair, CONTEXTS[0], seed=1))
    for length in CONTEXTS:
        for turn in range(rounds * MORE if length == CONTEXTS[0] else rounds):
            _one_round(pair, length, turn)
            if length == CONTEXTS[0]:
                _note_parts(pair, beside, "beside runs", times=5)


def _one_round(pair: Pair, length: int, turn: int) -> None:
    from dflash.model import dflash_generate

    prompt = prompt_of(pair, length, seed=turn)
    runs: list[tuple[str, Callable[[], Any]]] = [
        ("plain", partial(pair.plain.generate, [prompt], PARAMS)),
        ("ours", partial(pair.engine.generate, [prompt], PARAMS)),
        ("ours compiled", partial(pair.compiled.generate, [prompt], PARAMS)),
        ("dflash 0.1.0", partial(dflash_generate, pair.peer, pair.peer_target, torch.tensor([prompt]), NEW_TOKENS, None)),
    ]
    texts = {}
    for name, run in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
        seconds, texts[name] = seconds_of(run)
        pair.note(f"tokens_per_s {name} context {length}", NEW_TOKENS / seconds)
    (ours,), (compiled,), (alone,) = (texts[name] for name in ("ours", "ours compiled", "plain"))
    if not ours.token_ids == compiled.token_ids == alone.token_ids == texts["dflash 0.1.0"][0, length:].tolist():
        raise SystemExit(f"the texts differ after {length} tokens: nothing here can be trusted")
    pair.note(f"acceptance_length context {length}", ours.stats.mean_acceptance_length)


def batches(pair: Pair, rounds: int) -> None:
    """Tokens per second of 16 requests, by how many share a pass."""
    engines = {rows: TransformersEngine(pair.target, pair.drafter, max_batch_size=rows) for rows in ROWS}
    for turn in range(rounds):
        prompts = [prompt_of(pair, 64, seed=16 * turn + i) for i in range(16)]
        for rows, engine in engines.items():
            seconds, _ = seconds_of(partial(engine.generate, prompts, PARAMS))
            pair.note(f"tokens_per_s batch {rows}", len(prompts) * NEW_TOKENS / seconds)


def gates(pair: Pair, rounds: int) -> None:
    """Plain decoding beside width="auto", with the drafter and with one that knows nothing."""
    useless = copy.deepcopy(pair.drafter)
    torch.nn.init.normal_(useless.fc.weight, generator=torch.Generator().manual_seed(0))
    engines = {
        "plain": pair.plain,
        "auto": TransformersEngine(pair.target, pair.drafter, width="auto"),
        "auto, useless drafter": TransformersEngine(pair.target, useless, width="auto"),
    }
    sides = list(engines.items())
    for turn in range(rounds * MOST + 1):
        prompt = prompt_of(pair, 64, seed=turn)
        for name, engine in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            seconds, _ = seconds_of(partial(engine.generate, [prompt], PARAMS))
            if turn > 0:  # in the first round the gate learns what costs what
                pair.note(f"tokens_per_s gate {name}", NEW_TOKENS / seconds)


def parts(pair: Pair, rounds: int) -> None:
    """Seconds of the parts of a cycle at one place of a text: a plain step, a pass over a block, a draft and a compiled one."""
    for length in CONTEXTS:
        measured = _parts_after(pair, prompt_of(pair, length, seed=1))
        _note_parts(pair, measured, f"context {length}", times=20 * rounds)


def _note_parts(pair: Pair, measured: dict[str, Callable[[], Any]], where: str, *, times: int) -> None:
    """Each after what comes before it when a text is written, since that is what the processor's caches then hold."""
    for _ in range(times):
        for name, run in measured.items():
            measured[BEFORE[name]]()
            pair.note(f"seconds {name} {where}", seconds_of(run)[0])


def _parts_after(pair: Pair, prompt: list[int]) -> dict[str, Callable[[], Any]]:
    taps, block = pair.drafter.config.target_layer_ids, pair.drafter.config.block_size
    cache, length = pair.target.new_cache(), len(prompt)
    _, features = pair.target.forward(torch.tensor([prompt]), cache, rows=1, taps=taps)
    ids = torch.tensor([prompt[-block:]])

    def one_pass(tokens: Tensor, tapped: Sequence[int]) -> None:
        pair.target.forward(tokens, cache, rows=tokens.shape[1], taps=tapped)
        cache.rollback(length)

    def propose(drafter: Drafter, context: DrafterContext) -> None:
        drafter.propose(
            context,
            ids[0, :1],
            [block - 1],
            embed=pair.target.embed,
            head=pair.target.head,
            temperature=torch.zeros(1),
            streams=None,
        )

    drafts: dict[str, Callable[[], Any]] = {}
    for name, engine in (("propose", pair.engine), ("propose compiled", pair.compiled)):
        assert engine.drafter is not None
        assert features is not None
        context = engine.drafter.new_context()
        context.join()
        context.append(features, [length])
        drafts[name] = partial(propose, engine.drafter, context)
    passes: dict[str, Callable[[], Any]] = {
        "plain step": partial(one_pass, ids[:, :1], ()),
        "verify": partial(one_pass, ids, taps),
    }
    return passes | drafts


class Stopwatch:
    """Seconds spent in some methods of some modules."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seconds, result = seconds_of(partial(method, *args, **kwargs))
            self.seconds += seconds
            return result

        return call


def shares(pair: Pair, rounds: int) -> None:
    """What selector and convolutions take of the time, in runs of their own."""
    selector = pair.drafter.candidate_selector
    assert selector is not None
    convolutions = [c for layer in pair.drafter.layers for c in (layer.attention_conv, layer.mlp_conv)]
    methods = [(c, name) for c in convolutions for name in ("before", "after")] + [(selector, "forward")]
    watch = Stopwatch()
    for module, name in methods:
        setattr(module, name, watch.around(getattr(module, name)))
    for turn in range(rounds):
        watch.seconds = 0.0
        seconds, _ = seconds_of(partial(pair.engine.generate, [prompt_of(pair, 64, turn)], PARAMS))
        pair.note("selector_and_convolution_share", watch.seconds / seconds)
    for module, name in methods:
        delattr(module, name)


def summary(pair: Pair, form: str) -> dict[str, Any]:
    """Medians at the shortest context where none is named; form: " compiled", or "" for the drafter as it is."""
    near = CONTEXTS[0]
    plain, ours, peer = (f"tokens_per_s {name} context {near}" for name in ("plain", f"ours{form}", "dflash 0.1.0"))
    parts = {part: pair.median(f"seconds {part} context {near}") for part in ("plain step", "verify", f"propose{form}")}
    step, verify, propose = parts.values()
    beside = {part: pair.median(f"seconds {part} beside runs") for part in ("plain step", "verify", f"propose{form}")}
    cycle = (beside["verify"] + beside[f"propose{form}"]) / beside["plain step"]
    bound = pair.median(f"acceptance_length context {near}") / cycle
    figures = {
        "tokens_per_s_over_dflash_0_1_0": pair.paired(ours, peer),
        "tokens_per_s_over_plain": pair.paired(ours, plain),
        "propose_over_plain_step": propose / step,
        "verify_over_plain_step": verify / step,
        "share_of_bound": pair.paired(ours, plain) / bound,
        "by_context": {
            str(n): {
                "tokens_per_s": pair.median(f"tokens_per_s ours{form} context {n}"),
                "tokens_per_s_over_dflash_0_1_0": pair.paired(
                    f"tokens_per_s ours{form} context {n}", f"tokens_per_s dflash 0.1.0 context {n}"
                ),
                "propose_milliseconds": 1000 * pair.median(f"seconds propose{form} context {n}"),
            }
            for n in CONTEXTS
        },
    }
    return figures


def of_the_engine(pair: Pair) -> dict[str, Any]:
    """Medians of what is measured in one form only: batches, the share of the selector and auto, with the drafter as it is."""
    return {
        "batch16_over_batch1": pair.paired("tokens_per_s batch 16", "tokens_per_s batch 1"),
        "selector_and_convolution_share": pair.median("selector_and_convolution_share"),
        "auto_over_plain": pair.paired("tokens_per_s gate auto", "tokens_per_s gate plain"),
        "auto_with_a_useless_drafter_over_plain": pair.paired(
            "tokens_per_s gate auto, useless drafter", "tokens_per_s gate plain"
        ),
    }


def measure(threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    pair = load()
    whole_runs(pair, 1)  # what is made on first use is no part of the figures
    pair.samples.clear()
    whole_runs(pair, rounds)
    batches(pair, rounds)
    gates(pair, rounds)
    parts(pair, rounds)
    shares(pair, rounds)
    return {
        "threads": threads,
        "summary": summary(pair, " compiled") | of_the_engine(pair),
        "not_compiled": summary(pair, ""),
        "samples": pair.samples,
    }


def _as_text(report: dict[str, Any]) -> str:
    """JSON with the samples of a kind in one line, in six digits."""
    text = json.dumps(report, indent=1)
    lists = re.compile(r"\[\s+([^\[\]{}\"]+?)\s+\]")
    return lists.sub(lambda found: f"[{', '.join(f'{float(each):.6g}' for each in found[1].split(','))}]", text) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench/core.json"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    runs = [measure(threads, options.rounds) for threads in options.threads]
    machine = f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, float32"
    report = {"machine": machine, "summary": runs[0]["summary"], "not_compiled": runs[0]["not_compiled"], "runs": runs}
    options.output.write_text(_as_text(report))
    for run in runs:
        shown = {name: run[name] for name in ("summary", "not_compiled")}
        print(f"{run['threads']} threads: {json.dumps(shown, indent=2)}")


if __name__ == "__main__":
    main()
