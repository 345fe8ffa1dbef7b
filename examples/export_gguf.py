"""Writes a drafter as a GGUF for llama.cpp in several types, and says what each costs in bytes.

    python examples/export_gguf.py                                             # the pair that comes with dflash2
    python examples/export_gguf.py --target MODEL --drafter DRAFTER --output FOLDER f32 q8_0

Needs the extra `gguf`. The target, its folder or its GGUF, gives its tokenizer: llama.cpp wants the same one in both files.
"""

import argparse
from pathlib import Path

from dflash2_core.assets import tiny_pair
from gguf_export import examine, export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outtypes", nargs="*", default=["bf16", "q8_0", "q4_0"])
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--drafter", type=Path, default=tiny_pair().drafter)
    parser.add_argument("--output", type=Path, default=Path())
    asked = parser.parse_args()

    asked.output.mkdir(parents=True, exist_ok=True)
    for outtype in asked.outtypes:
        path = asked.output / f"drafter-{outtype}.gguf"
        done = export(asked.drafter, path, tokenizer_from=asked.target, outtype=outtype)
        found = examine(path)  # read back as llama.cpp would read it
        told = "; ".join(map(str, found.findings)) or "sound"
        print(f"{path}: {done.num_tensors} tensors, {done.num_bytes:,} bytes, {told}")


if __name__ == "__main__":
    main()
