"""Prompts cut from the corpus: the drafter's for training, and the held-out ones kept beside the pair as `prompts.json`."""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from recipes.tiny_pair.corpus import DOMAINS, IM_START, Domain, Split, documents

HELDOUT_PER_DOMAIN = 70


def cut_prompts(
    tokenizer: PreTrainedTokenizerFast, domain: Domain, split: Split, count: int, lengths: tuple[int, int], seed: int
) -> Iterator[str]:
    """Yields `count` prefixes of lengths spread evenly over `lengths` (tokens, both included).

    Code and docs begin at a line somewhere in a file, arithmetic at the beginning of a worksheet. A chat's prompt is its
    first question and the beginning of the assistant's turn, whatever its length.
    """
    rng = random.Random(f"{domain} {split} {seed}")
    texts = documents(domain, split)
    low, high = lengths
    for index in range(count):
        text = rng.choice(texts)
        if text.startswith(IM_START):
            yield text[: text.index("assistant\n") + len("assistant\n")]
            continue
        if domain != "arithmetic":
            text = text[_line_start(text, rng) :]
        length = low + round((high - low) * index / max(1, count - 1))
        ids = tokenizer(text[: 8 * length + 16])["input_ids"]
        ends = range(min(length, len(ids)), len(ids))
        whole = next((end for end in ends if not tokenizer.decode(ids[:end]).endswith("\ufffd")), len(ids))
        yield tokenizer.decode(ids[:whole])  # an id or two more where the length cuts a character in two


def _line_start(text: str, rng: random.Random) -> int:
    starts = [match.end() for match in re.finditer(r"\n(?=\S)", text[:-400])]
    return rng.choice(starts) if starts else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/tiny_pair"))
    parser.add_argument("--per-domain", type=int, default=1600)
    arguments = parser.parse_args()
    work: Path = arguments.work
    tokenizer = AutoTokenizer.from_pretrained(work / "looping")
    heldout = [
        {"domain": domain, "text": text}
        for domain in DOMAINS
        for text in cut_prompts(tokenizer, domain, "heldout", HELDOUT_PER_DOMAIN, (1, 200), seed=0)
    ]
    with (work / "training_prompts.jsonl").open("w", encoding="utf-8") as file:
        for domain in DOMAINS:
            for text in cut_prompts(tokenizer, domain, "train", arguments.per_domain, (8, 160), seed=1):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    # Last, since a build takes it for the sign that all are there.
    (work / "prompts.json").write_text(json.dumps(heldout, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
