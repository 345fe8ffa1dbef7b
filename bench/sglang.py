"""How fast SGLang is with the embedded pair, beside itself without a drafter: `make bench-sglang`.

Both servers run at once and are asked in turn, the same prompts greedily, so that each ratio is of two samples taken one after
the other; one thread each, float32. Times are a client's, prompts included. Every sample is kept in `bench/sglang.json`.
"""

import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dflash2_core import AcceptanceStats
from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_sglang import Sglang
from dflash2_sglang.metrics import acceptance
from dflash2_sglang.server import SglangServer
from tests.engines.pair import thirty_prompts

BATCHES, NEW_TOKENS, ROUNDS = (1, 4, 16), 128, 3
RESULTS = Path(__file__).with_suffix(".json")
EXTRA = (
    "--dtype",
    "float32",
    "--max-total-tokens",
    "20000",
    "--mem-fraction-static",
    "0.2",
    "--disable-radix-cache",
    "--sleep-on-idle",
)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    prompts = [prompt for prompt in thirty_prompts() if len(prompt) > 1][:16]
    engine, pair = Sglang(), tiny_pair()
    with TemporaryDirectory() as folder:
        options = EngineOptions(parallel=16, extra=EXTRA, log=Path(folder) / "plain.log")
        with (
            engine.start(pair.target, None, options) as plain,
            engine.start(pair.target, pair.drafter, replace(options, log=Path(folder) / "drafted.log")) as drafted,
        ):
            for server in (plain, drafted):  # what is slow once only
                _written(server, prompts, 4)
            found = {batch: _compared(plain, drafted, prompts, batch) for batch in BATCHES}
    version = engine.probe().version
    RESULTS.write_text(json.dumps({"engine": f"sglang {version}", "new_tokens": NEW_TOKENS, "samples": found}, indent=1) + "\n")
    print(f"SGLang {version}, one thread, float32; {len(prompts)} prompts x {NEW_TOKENS} tokens, {ROUNDS} rounds, medians:")
    for batch, samples in found.items():
        ratios = [d / p for d, p in zip(samples["drafted"], samples["plain"], strict=True)]
        print(
            f"batch {batch:2}: {statistics.median(samples['drafted']):.0f} tokens per second, plain "
            f"{statistics.median(samples['plain']):.0f}, speed-up {statistics.median(ratios):.2f} "
            f"({', '.join(f'{ratio:.2f}' for ratio in ratios)}), acceptance length {samples['acceptance_length']:.2f}"
        )


def _compared(plain: SglangServer, drafted: SglangServer, prompts: list[list[int]], batch: int) -> dict[str, Any]:
    """Tokens per second of each round; SystemExit where the ids differ."""
    samples: dict[str, Any] = {"plain": [], "drafted": []}
    drafting = []
    for turn in range(ROUNDS):
        texts: dict[str, list[Any]] = {}
        for name, server in (("plain", plain), ("drafted", drafted))[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            parts = [_written(server, prompts[at : at + batch], NEW_TOKENS) for at in range(0, len(prompts), batch)]
            spent = time.perf_counter() - begin
            answers = [answer for part in parts for answer in part]
            texts[name] = [answer["output_ids"] for answer in answers]
            samples[name].append(sum(map(len, texts[name])) / spent)
            if server is drafted:
                drafting += [acceptance(answer["meta_info"]) for answer in answers]
        if texts["plain"] != texts["drafted"]:
            raise SystemExit("the texts differ: nothing here can be trusted")
    return samples | {"acceptance_length": AcceptanceStats.total(drafting).mean_acceptance_length}


def _written(server: SglangServer, prompts: list[list[int]], new_tokens: int) -> list[Any]:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    answers: list[Any] = server.ask("/generate", {"input_ids": prompts, "sampling_params": sampling})
    return answers


if __name__ == "__main__":
    main()
