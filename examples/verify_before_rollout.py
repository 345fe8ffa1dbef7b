"""The last step before a drafter goes live: is the engine's text with it what it is without? Leaves a report for the ticket.

    python examples/verify_before_rollout.py                                   # dflash2's own engine and pair
    python examples/verify_before_rollout.py --engine vllm --target MODEL --drafter DRAFTER --computes-in bfloat16

Exit code 0: roll it out; 1: do not, and the report says why; 2: it could not be told.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from dflash2_core.assets import tiny_pair


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--computes-in", default="float32")
    parser.add_argument(
        "--tokens", default="20000", help="sampled tokens; the smallest deviation that is found grows with fewer"
    )
    parser.add_argument("--report", type=Path, default=Path("verify.html"))
    asked = parser.parse_args()

    pair = [str(asked.target), str(asked.drafter)]
    options = ["--engine", asked.engine, "--computes-in", asked.computes_in, "--tokens", asked.tokens]
    command = [sys.executable, "-m", "dflash2_core.cli", "verify", *pair, *options, "--html", str(asked.report), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:
        return 2
    report = json.loads(done.stdout)
    print(f"acceptance length {report['drafting']['mean_acceptance_length']:.2f}")
    for difference in report["differences"]:
        print(f"{difference['verdict']}: {difference['kind']}, token {difference['position']}")
    for finding in report["findings"]:
        print(finding)
    print(f"{'roll it out' if report['lossless'] else 'do NOT roll it out'}; the report is {asked.report}")
    return 0 if report["lossless"] else 1


if __name__ == "__main__":
    sys.exit(main())
