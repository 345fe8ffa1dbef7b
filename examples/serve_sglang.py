"""Starts SGLang with a drafter, asks it as any client of the OpenAI API would, and says how many drafts were kept.

    python examples/serve_sglang.py                                            # the pair that comes with dflash2
    python examples/serve_sglang.py --target MODEL --drafter DRAFTER -- --dtype bfloat16

SGLang runs in a Python of its own: the one that DFLASH2_SGLANG_PYTHON names, or that of `bash ci/sglang.sh`. What stands
behind -- is handed on to it. SGLang tells the drafts of a request in the answer of its own endpoint alone: that is asked too.
"""

import argparse
import json
from pathlib import Path
from urllib.request import Request, urlopen

from transformers import AutoTokenizer

from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions, find_engine

SMALL = ("--dtype", "float32", "--max-total-tokens", "20000", "--mem-fraction-static", "0.2", "--sleep-on-idle")
PROMPT = "def read_lines(path):\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    parser.add_argument("engine_arguments", nargs="*", default=SMALL)
    asked = parser.parse_args()

    ids = AutoTokenizer.from_pretrained(asked.target)(PROMPT)["input_ids"]
    engine, options = find_engine("sglang"), EngineOptions(extra=tuple(asked.engine_arguments))
    print(f"runs {engine.command(asked.target, asked.drafter, options)}")
    with engine.start(asked.target, asked.drafter, options) as server:
        question = {"model": "default", "prompt": PROMPT, "max_tokens": 48, "temperature": 0}
        request = Request(f"{server.base_url}/completions", json.dumps(question).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            print(json.load(answer)["choices"][0]["text"])
        [again] = server.generate_ids([ids], SamplingParams(max_new_tokens=48))
        stats = server.acceptance()
    print(f"in ids {again.token_ids}")
    print(f"acceptance length {stats.mean_acceptance_length:.2f}: {stats.num_accepted} of {stats.num_drafted} drafts kept")


if __name__ == "__main__":
    main()
