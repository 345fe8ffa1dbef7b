"""Starts llama-server with a drafter, asks it as any client of the OpenAI API would, and says how many drafts were kept.

    python examples/serve_llama_cpp.py                                         # the pair that comes with dflash2
    python examples/serve_llama_cpp.py --target MODEL.gguf --drafter DRAFTER -- -ngl 99

llama-server is found by DFLASH2_LLAMA_CPP_SERVER, on PATH, or where `bash ci/llama_cpp.sh` built it. The drafter may be its
folder, which is exported once, or a GGUF. What stands behind -- is handed on.
"""

import argparse
import json
from pathlib import Path
from urllib.request import Request, urlopen

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions, find_engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    parser.add_argument("engine_arguments", nargs="*", default=["-t", "1"])
    asked = parser.parse_args()

    engine, options = find_engine("llama-cpp"), EngineOptions(extra=tuple(asked.engine_arguments))
    print(f"runs {engine.command(asked.target, asked.drafter, options)}")
    with engine.start(asked.target, asked.drafter, options) as server:
        question = {"prompt": "def read_lines(path):\n", "max_tokens": 48, "temperature": 0}
        request = Request(f"{server.base_url}/completions", json.dumps(question).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            print(json.load(answer)["choices"][0]["text"])
        stats = server.acceptance()
    print(f"acceptance length {stats.mean_acceptance_length:.2f}: {stats.num_accepted} of {stats.num_drafted} drafts kept")


if __name__ == "__main__":
    main()
