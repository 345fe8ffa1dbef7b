"""The pair's figures, by the project's own engine over held-out prompts: `python -m recipes.tiny_pair.measure`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash2_core import AcceptanceStats, SamplingParams, TransformersEngine
from recipes.tiny_pair.corpus import DOMAINS

NEW_TOKENS = 128
NGRAM = 8
ROWS = 8  # requests at once


def measure(target: Path, drafter: Path, prompts: Path, temperatures: Sequence[float], per_domain: int) -> dict[str, Any]:
    """Acceptance length by temperature and domain, in float32; by position, and repeated 8-grams, for greedy text."""
    engine = TransformersEngine.from_pretrained(target, drafter, dtype="float32", device="cpu", max_batch_size=ROWS)
    entries = json.loads(prompts.read_text(encoding="utf-8"))
    figures: dict[str, Any] = {"acceptance_length": {}, "repeated_8_grams": {}}
    for temperature in temperatures:
        parts, lengths = [], {}
        for domain in DOMAINS:
            texts = [entry["text"] for entry in entries if entry["domain"] == domain]
            params = [
                SamplingParams(temperature=temperature, max_new_tokens=NEW_TOKENS, seed=seed) for seed in range(per_domain)
            ]
            completions = engine.generate(spread(texts, per_domain), params)
            parts.append(AcceptanceStats.total(completion.stats for completion in completions))
            lengths[domain] = round(parts[-1].mean_acceptance_length, 3)
            if temperature == 0:
                share = repeated_share([completion.token_ids for completion in completions])
                figures["repeated_8_grams"][domain] = round(share, 3)
        whole = AcceptanceStats.total(parts)
        figures["acceptance_length"][str(temperature)] = lengths | {"all": round(whole.mean_acceptance_length, 3)}
        if temperature == 0:
            pairs = zip(whole.accepted_per_position, whole.drafted_per_position, strict=True)
            figures["accepted_by_position"] = [round(accepted / drafted, 3) for accepted, drafted in pairs]
    return figures


def spread(texts: Sequence[str], count: int) -> list[str]:
    """`count` of the texts, evenly over their order, which is that of their lengths."""
    return [texts[i * len(texts) // count] for i in range(count)]


def repeated_share(texts: Sequence[Sequence[int]]) -> float:
    """Which share of the 8-grams stood in the same text before."""
    total = repeated = 0
    for ids in texts:
        grams = [tuple(ids[i : i + NGRAM]) for i in range(len(ids) - NGRAM + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / max(1, total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=Path("runs/tiny_pair/target"))
    parser.add_argument("--drafter", type=Path, default=Path("runs/tiny_pair/full/drafter"))
    parser.add_argument("--prompts", type=Path, default=Path("runs/tiny_pair/prompts.json"))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--per-domain", type=int, default=35)
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    figures = measure(arguments.target, arguments.drafter, arguments.prompts, arguments.temperatures, arguments.per_domain)
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
