"""Starts vLLM with a drafter, asks it as any client of the OpenAI API would, and says how many drafts were kept.

    python examples/serve_vllm.py                                              # the pair that comes with dflash2
    python examples/serve_vllm.py --target MODEL --drafter DRAFTER -- --dtype bfloat16

vLLM runs in a Python of its own: the one that DFLASH2_VLLM_PYTHON names, or that of `bash ci/vllm.sh`. What stands behind -- is
handed on to it. On a CPU set OMP_NUM_THREADS and VLLM_CPU_OMP_THREADS_BIND=nobind where other programs use the cores too.
"""

import argparse
import json
from pathlib import Path
from urllib.request import Request, urlopen

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions, find_engine

SMALL = ("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    parser.add_argument("engine_arguments", nargs="*", default=SMALL)
    asked = parser.parse_args()

    engine, options = find_engine("vllm"), EngineOptions(extra=tuple(asked.engine_arguments))
    print(f"runs {engine.command(asked.target, asked.drafter, options)}")
    with engine.start(asked.target, asked.drafter, options) as server:
        question = {"model": str(asked.target), "prompt": "def read_lines(path):\n", "max_tokens": 48, "temperature": 0}
        request = Request(f"{server.base_url}/completions", json.dumps(question).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            print(json.load(answer)["choices"][0]["text"])
        stats = server.acceptance()
    print(f"acceptance length {stats.mean_acceptance_length:.2f}: {stats.num_accepted} of {stats.num_drafted} drafts kept")


if __name__ == "__main__":
    main()
