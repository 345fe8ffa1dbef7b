"""How fast llama-server is with the embedded pair, by the type of the drafter's weights: `make bench-llama-cpp`.

For each type a plain server and a drafting one run at once and are asked in turn (`dflash2_core.benchmarks`), one thread each.
Every sample is kept in `bench/llama_cpp.json`. `dflash2 bench --engine llama-cpp` is the same for a pair of one's own.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.prompts import encoded_prompts
from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.benchmarks import Batch, compare
from dflash2_core.benchmarks.machine import described
from dflash2_core.engines import EngineOptions
from dflash2_llama_cpp import LlamaCpp

OUTTYPES = ("f32", "bf16", "q8_0", "q4_0")
RESULTS = Path(__file__).with_suffix(".json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()

    engine, pair, prompts = LlamaCpp(), tiny_pair(), encoded_prompts(asked.prompts)
    options, params = EngineOptions(extra=("-t", "1")), SamplingParams(max_new_tokens=asked.new_tokens)
    found: dict[str, Batch] = {}
    with TemporaryDirectory() as folder, engine.start(pair.target, None, options) as plain:
        for outtype in OUTTYPES:
            with engine.start(
                pair.target, pair.drafter, replace(options, drafter_dtype=outtype, cache=Path(folder))
            ) as drafted:
                found[outtype] = compare(plain, drafted, prompts, params, size=1, rounds=asked.rounds)
            if found[outtype].num_identical != found[outtype].num_texts:
                raise SystemExit("the texts differ: nothing here can be trusted")
    version = engine.probe().version
    results = {outtype: batch.to_dict() for outtype, batch in found.items()}
    asked.output.write_text(json.dumps({"engine": version, "machine": described(), "drafters": results}, indent=1) + "\n")
    asked_for = f"{len(prompts)} prompts x {asked.new_tokens} tokens"
    print(f"llama.cpp {version}, one thread, {asked_for}, medians of {asked.rounds} rounds:")
    for outtype, batch in found.items():
        print(
            f"drafter {outtype}: acceptance length {batch.acceptance.mean_acceptance_length:.2f} · "
            f"{statistics.median(batch.drafted):.1f} tokens per second · plain {statistics.median(batch.plain):.1f} · "
            f"speed-up {batch.speed_up:.2f}"
        )


if __name__ == "__main__":
    main()
