"""How fast SGLang is with the embedded pair, beside itself without a drafter: `make bench-sglang`.

Both servers run at once and are asked in turn (`dflash2_core.benchmarks`); one thread each, float32. Every sample is kept in
`bench/sglang.json`. `dflash2 bench --engine sglang` is the same for a pair of one's own.
"""

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.prompts import encoded_prompts
from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.benchmarks import compare
from dflash2_core.benchmarks.machine import described
from dflash2_core.engines import EngineOptions
from dflash2_sglang import Sglang

BATCHES = (1, 4, 16)
RESULTS = Path(__file__).with_suffix(".json")
EXTRA = ("--dtype", "float32", "--max-total-tokens", "20000", "--mem-fraction-static", "0.2", "--disable-radix-cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    engine, pair, prompts = Sglang(), tiny_pair(), encoded_prompts(asked.prompts)
    params = SamplingParams(max_new_tokens=asked.new_tokens, ignore_eos=True)
    with TemporaryDirectory() as folder:
        options = EngineOptions(parallel=max(BATCHES), extra=(*EXTRA, "--sleep-on-idle"), log=Path(folder) / "plain.log")
        with (
            engine.start(pair.target, None, options) as plain,
            engine.start(pair.target, pair.drafter, replace(options, log=Path(folder) / "drafted.log")) as drafted,
        ):
            found = [compare(plain, drafted, prompts, params, size=size, rounds=asked.rounds) for size in BATCHES]
    if any(batch.num_identical != batch.num_texts for batch in found):
        raise SystemExit("the texts differ: nothing here can be trusted")
    version = engine.probe().version
    told = {"engine": f"sglang {version}", "machine": described(), "new_tokens": asked.new_tokens}
    asked.output.write_text(json.dumps(told | {"batches": [batch.to_dict() for batch in found]}, indent=1) + "\n")
    asked_for = f"{len(prompts)} prompts x {asked.new_tokens} tokens"
    print(f"SGLang {version}, one thread, float32; {asked_for}, medians of {asked.rounds} rounds:")
    for batch in found:
        ratios = ", ".join(f"{d / p:.2f}" for d, p in zip(batch.drafted, batch.plain, strict=True))
        print(
            f"batch {batch.size:2}: {statistics.median(batch.drafted):.1f} tokens per second, plain "
            f"{statistics.median(batch.plain):.1f}, speed-up {batch.speed_up:.2f} ({ratios}), acceptance length "
            f"{batch.acceptance.mean_acceptance_length:.2f}"
        )


if __name__ == "__main__":
    main()
