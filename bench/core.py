"""How fast the core is, beside plain decoding and the PyPI package `dflash`: `make bench-core`.

All sides decode the same prompts greedily with the same weights in one process, one after the other, again and again. Every
sample is kept in `bench/core.json`; the summary is of medians.
"""

import argparse
import json
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from dflash2_core import Drafter, SamplingParams, TransformersEngine, load_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.transformers_engine import Target

NEW_TOKENS = 96
CONTEXTS = (64, 512, 2000, 4000)
CONTEXT_LIMIT = 4608  # the embedded pair states 2,048: past that it writes worse, at the same cost
ROWS = (1, 4, 16)
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)


@dataclass
class Pair:
    """The embedded pair, and the same weights in the peer's own class."""

    target: Target
    drafter: Drafter
    engine: TransformersEngine
    plain: TransformersEngine
    peer: Any
    prompts: list[list[int]]
    samples: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])


def load() -> Pair:
    from dflash.model import DFlash2DraftModel

    with TemporaryDirectory() as folder:
        paths = [_with_longer_context(path, Path(folder) / path.name) for path in (tiny_pair().target, tiny_pair().drafter)]
        target = Target.from_pretrained(paths[0], dtype="float32", device="cpu")
        drafter = load_drafter(paths[1], dtype=torch.float32)
        peer, loaded = DFlash2DraftModel.from_pretrained(paths[1], dtype=torch.float32, output_loading_info=True)
    if any(loaded[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise SystemExit(f"the peer did not take the drafter's weights as they are: {loaded}")
    assert target.tokenizer is not None
    prompts = [target.tokenizer(entry["text"])["input_ids"] for entry in held_out_prompts()]
    return Pair(target, drafter, TransformersEngine(target, drafter), TransformersEngine(target), peer.eval(), prompts)


def _with_longer_context(source: Path, copy: Path) -> Path:
    shutil.copytree(source, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT_LIMIT}))
    return copy


def prompt_of(pair: Pair, length: int, seed: int) -> list[int]:
    """A text of `length` ids, made of held-out prompts one after the other."""
    ids: list[int] = []
    while len(ids) < length:
        ids += pair.prompts[(7 * seed + 31 * len(ids)) % len(pair.prompts)]
    return ids[:length]


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def whole_runs(pair: Pair, rounds: int) -> None:
    """Tokens per second, prefill included, one request at a time."""
    for length in CONTEXTS:
        for turn in range(rounds):
            _one_round(pair, length, turn)


def _one_round(pair: Pair, length: int, turn: int) -> None:
    from dflash.model import dflash_generate

    prompt = prompt_of(pair, length, seed=turn)
    runs: list[tuple[str, Callable[[], Any]]] = [
        ("plain", partial(pair.plain.generate, [prompt], PARAMS)),
        ("ours", partial(pair.engine.generate, [prompt], PARAMS)),
        ("dflash 0.1.0", partial(dflash_generate, pair.peer, pair.target.model, torch.tensor([prompt]), NEW_TOKENS, None)),
    ]
    texts = {}
    for name, run in runs[turn % 3 :] + runs[: turn % 3]:
        seconds, texts[name] = seconds_of(run)
        pair.note(f"tokens_per_s {name} context {length}", NEW_TOKENS / seconds)
    (ours,), (alone,), peers = texts["ours"], texts["plain"], texts["dflash 0.1.0"][0, length:].tolist()
    if not ours.token_ids == alone.token_ids == peers:
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


def parts(pair: Pair, rounds: int) -> None:
    """Seconds of the parts of a cycle at one place of a text: a plain step, a pass over a block, a draft."""
    for length in CONTEXTS:
        measured = _parts_after(pair, prompt_of(pair, length, seed=1))
        for _ in range(20 * rounds):
            for name, run in measured.items():
                pair.note(f"seconds {name} context {length}", seconds_of(run)[0])


def _parts_after(pair: Pair, prompt: list[int]) -> dict[str, Callable[[], Any]]:
    taps, block = pair.drafter.config.target_layer_ids, pair.drafter.config.block_size
    cache, context, length = pair.target.new_cache(), pair.drafter.new_context(), len(prompt)
    context.join()
    _, features = pair.target.forward(torch.tensor([prompt]), cache, rows=1, taps=taps)
    assert features is not None
    context.append(features, [length])
    ids = torch.tensor([prompt[-block:]])

    def one_pass(tokens: Tensor, tapped: Sequence[int]) -> None:
        pair.target.forward(tokens, cache, rows=tokens.shape[1], taps=tapped)
        cache.rollback(length)

    def propose() -> None:
        pair.drafter.propose(
            context,
            ids[0, :1],
            [block - 1],
            embed=pair.target.embed,
            head=pair.target.head,
            temperature=torch.zeros(1),
            streams=None,
        )

    return {"plain_step": partial(one_pass, ids[:, :1], ()), "verify": partial(one_pass, ids, taps), "propose": propose}


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


def summary(pair: Pair) -> dict[str, Any]:
    """Medians at the shortest context where none is named."""
    near = CONTEXTS[0]
    speed = {name: pair.median(f"tokens_per_s {name} context {near}") for name in ("plain", "ours", "dflash 0.1.0")}
    step, verify, propose = (pair.median(f"seconds {part} context {near}") for part in ("plain_step", "verify", "propose"))
    acceptance = pair.median(f"acceptance_length context {near}")
    bound = acceptance / ((verify + propose) / step)
    return {
        "tokens_per_s_over_dflash_0_1_0": speed["ours"] / speed["dflash 0.1.0"],
        "tokens_per_s_over_plain": speed["ours"] / speed["plain"],
        "propose_over_plain_step": propose / step,
        "verify_over_plain_step": verify / step,
        "share_of_bound": speed["ours"] / speed["plain"] / bound,
        "batch16_over_batch1": pair.median("tokens_per_s batch 16") / pair.median("tokens_per_s batch 1"),
        "selector_and_convolution_share": pair.median("selector_and_convolution_share"),
        "propose_over_plain_step_by_context": {
            str(n): pair.median(f"seconds propose context {n}") / pair.median(f"seconds plain_step context {n}")
            for n in CONTEXTS
        },
    }


def measure(threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    pair = load()
    whole_runs(pair, 1)  # what is made on first use is no part of the figures
    pair.samples.clear()
    whole_runs(pair, rounds)
    batches(pair, rounds)
    parts(pair, rounds)
    shares(pair, rounds)
    return {"threads": threads, "summary": summary(pair), "samples": pair.samples}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench/core.json"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    runs = [measure(threads, options.rounds) for threads in options.threads]
    machine = f"{platform.processor() or platform.machine()}, torch {torch.__version__}, float32"
    report = {"machine": machine, "summary": runs[-1]["summary"], "runs": runs}
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    for run in runs:
        print(f"{run['threads']} threads: {json.dumps(run['summary'], indent=2)}")


if __name__ == "__main__":
    main()
