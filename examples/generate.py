"""Writes a text with a drafter and once more without: the same text, in fewer passes of the target.

python examples/generate.py                                                # the pair that comes with dflash2
python examples/generate.py --target MODEL --drafter DRAFTER "Once upon a time"
"""

import argparse
from pathlib import Path

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.assets import tiny_pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="def read_lines(path):\n")
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    asked = parser.parse_args()

    drafted = TransformersEngine.from_pretrained(asked.target, asked.drafter, dtype="float32")
    plain = TransformersEngine.from_pretrained(asked.target, dtype="float32")
    greedy = SamplingParams(max_new_tokens=64)

    print(asked.prompt, end="")
    for chunk in drafted.stream(asked.prompt, greedy):
        print(chunk.text, end="", flush=True)
    print()

    [completion] = drafted.generate(asked.prompt, greedy)
    [alone] = plain.generate(asked.prompt, greedy)
    stats = completion.stats
    print(f"\nidentical to plain decoding: {completion.token_ids == alone.token_ids}")
    length, passes = stats.mean_acceptance_length, stats.num_target_passes
    print(f"acceptance length {length:.2f}, {passes} passes for {len(alone.token_ids)} tokens")

    for seed in (1, 2):
        [sampled] = drafted.generate(asked.prompt, SamplingParams(temperature=0.7, top_p=0.9, seed=seed, max_new_tokens=24))
        print(f"sampled with seed {seed}: {sampled.text!r}")


if __name__ == "__main__":
    main()
