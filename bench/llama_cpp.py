"""How fast llama-server is with the embedded pair, beside itself without a drafter: `make bench-llama-cpp`.

Both servers run at once and are asked in turn, the same prompts greedily, so that each ratio is of two samples taken one after
the other. Times are the server's own, of decoding alone. Every sample is kept in `bench/llama_cpp.json`.
"""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

from dflash2_core import AcceptanceStats
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_llama_cpp import LlamaCpp
from dflash2_llama_cpp.server import LlamaServer
from gguf_export import export
from gguf_export.embedded import write_embedded_target

OUTTYPES = ("f32", "bf16", "q8_0", "q4_0")
NEW_TOKENS, ROUNDS, PROMPTS = 128, 3, 21
RESULTS = Path(__file__).with_suffix(".json")


def main() -> None:
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt["text"]).ids for prompt in held_out_prompts()[:: 210 // PROMPTS]]
    engine, results = LlamaCpp(), {}
    options = EngineOptions(extra=("-t", "1"))
    with TemporaryDirectory() as folder:
        target = write_embedded_target(Path(folder) / "target.gguf")
        with engine.start(target, None, options) as plain:
            for outtype in OUTTYPES:
                drafter = Path(folder) / f"{outtype}.gguf"
                export(tiny_pair().drafter, drafter, tokenizer_from=target, outtype=outtype)
                with engine.start(target, drafter, options) as drafted:
                    results[outtype] = _compared(plain, drafted, prompts)
    report = engine.probe()
    RESULTS.write_text(json.dumps({"engine": report.version, "samples": results}, indent=1) + "\n")
    print(f"llama.cpp {report.version}, one thread, {len(prompts)} prompts x {NEW_TOKENS} tokens, {ROUNDS} rounds, medians:")
    for outtype, found in results.items():
        print(
            f"drafter {outtype}: acceptance length {found['acceptance_length']:.2f} · "
            f"{statistics.median(found['drafted']):.0f} tokens per second · plain {statistics.median(found['plain']):.0f} · "
            f"speed-up {statistics.median(d / p for d, p in zip(found['drafted'], found['plain'], strict=True)):.2f}"
        )


def _compared(plain: LlamaServer, drafted: LlamaServer, prompts: list[list[int]]) -> dict[str, list[float] | float]:
    """Tokens per second of each round; SystemExit where the ids differ."""
    found: dict[str, list[float]] = {"plain": [], "drafted": []}
    before = drafted.acceptance()
    for turn in range(ROUNDS):
        texts, spent = {}, {"plain": 0.0, "drafted": 0.0}
        for prompt in prompts:
            for name, server in (("plain", plain), ("drafted", drafted))[:: 1 if turn % 2 else -1]:
                asked = {
                    "prompt": prompt,
                    "n_predict": NEW_TOKENS,
                    "temperature": 0,
                    "return_tokens": True,
                    "cache_prompt": False,
                }
                answer = server.ask("/completion", asked)
                texts[name] = answer["tokens"]
                spent[name] += answer["timings"]["predicted_ms"] / answer["timings"]["predicted_n"] / len(prompts)
            if texts["plain"] != texts["drafted"]:
                raise SystemExit("the texts differ: nothing here can be trusted")
        for name, milliseconds in spent.items():
            found[name].append(1000 / milliseconds)
    return {**found, "acceptance_length": _length(before, drafted.acceptance())}


def _length(before: AcceptanceStats, after: AcceptanceStats) -> float:
    cycles = after.num_cycles - before.num_cycles
    return 1 + (after.num_accepted - before.num_accepted) / cycles


if __name__ == "__main__":
    main()
