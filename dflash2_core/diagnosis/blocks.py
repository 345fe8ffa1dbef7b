"""One block length, four names: how each engine is told it, and what it takes where it is told nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dflash2_core.config import DrafterConfig
from dflash2_core.deployment.serving import COUNTS
from dflash2_core.diagnosis.arguments import number, options_of, vllm_speculation
from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.finding import Finding
from dflash2_core.engines import OWN

LLAMA_DRAFTER = ("-md", "--model-draft", "--spec-draft-model", "--spec-type")
LLAMA_REMOVED = ("--draft", "--draft-n", "--draft-max")
LLAMA_DEFAULT = 3
LEFT_OUT = {
    # engine -> what it takes where its argument is left out
    OWN: "{rows}, the checkpoint's own",
    "vllm": "{drafts} by the plugin; vLLM alone does not start",
    "sglang": "{rows}, read from config.json; 16 where that fails",
    "llama-cpp": "{cut}, of {drafts}",
    "ollama": "0 was seen: the drafter is loaded, and nothing is drafted",
}


@dataclass(frozen=True)
class Words:
    """count: the engine's argument for a whole block; left_out: what it takes without."""

    engine: str
    count: str
    left_out: str


def block_in_words(config: DrafterConfig) -> list[Words]:
    """For every engine that this project has words for."""
    values = {"drafts": config.num_drafts, "rows": config.block_size, "cut": min(LLAMA_DEFAULT, config.num_drafts)}
    counts = COUNTS | {OWN: "--block-size {rows}", "ollama": "draft_num_predict {drafts}"}
    return [Words(name, counts[name].format(**values), left_out.format(**values)) for name, left_out in LEFT_OUT.items()]


def block_findings(engine: EngineSide, config: DrafterConfig) -> Iterator[Finding]:
    """Of the arguments that the user gave this engine: would it draft whole blocks? EngineError for what cannot be read.

    Arguments that name a drafter are a command of the user's own, of which the engine's defaults complete the rest; others are
    handed on by `dflash2 serve`, which says the block itself.
    """
    options = options_of(engine.arguments)
    if engine.name == "vllm":
        yield from _vllm(options, engine, config)
    elif engine.name == "sglang":
        yield from _sglang(options, config)
    elif engine.name == "llama-cpp":
        yield from _llama(options, config)


def _vllm(options: Mapping[str, str], engine: EngineSide, config: DrafterConfig) -> Iterator[Finding]:
    asked = vllm_speculation(options)
    if asked is None:
        return
    method = asked.get("method", "dflash")
    if method != "dflash":
        yield Finding(
            "error", "vllm", f"the method is {method}: a DFlash drafter is run by dflash alone", 'say "method": "dflash"'
        )
    count, mend = asked.get("num_speculative_tokens"), f'say "num_speculative_tokens": {config.num_drafts}'
    if count is None and engine.report.route != "plugin":
        yield Finding("error", "vllm", "num_speculative_tokens is left out: vLLM does not start without it", mend)
    elif isinstance(count, int):
        yield from _judged("vllm", f"num_speculative_tokens is {count}", count, config, mend)
    elif count is not None:
        yield Finding("error", "vllm", f"num_speculative_tokens is {count!r}: expected a number", mend)


def _sglang(options: Mapping[str, str], config: DrafterConfig) -> Iterator[Finding]:
    algorithm = options.get("--speculative-algorithm", "DFLASH")
    if algorithm.upper() != "DFLASH":
        yield Finding(
            "error",
            "sglang",
            f"--speculative-algorithm is {algorithm}: a DFlash drafter is run by DFLASH alone",
            "say --speculative-algorithm DFLASH",
        )
    for name in ("--speculative-num-draft-tokens", "--speculative-dflash-block-size"):
        if (rows := number(options, name)) is not None:
            said = f"{name} is {rows:g}, which counts rows, the last token of the text among them"
            yield from _judged("sglang", said, int(rows) - 1, config, f"say {name} {config.block_size}")


def _llama(options: Mapping[str, str], config: DrafterConfig) -> Iterator[Finding]:
    mend = f"say --spec-draft-n-max {config.num_drafts}"
    for name in (name for name in LLAMA_REMOVED if name in options):
        yield Finding("error", "llama-cpp", f"{name} was removed: llama-server does not start with it", mend)
    own = any(name in options for name in LLAMA_DRAFTER)
    types = options.get("--spec-type", "draft-dflash")  # left out, it follows from the drafter's GGUF
    if "draft-dflash" not in types.split(","):
        does = "nothing is drafted with it" if types == "none" else "it is run as what it is not, and nothing of it is kept"
        reason = f"--spec-type is {types}: the drafter is loaded, and {does}"
        yield Finding("error", "llama-cpp", reason, "say --spec-type draft-dflash, or leave it out")
    stated = number(options, "--spec-draft-n-max")
    if stated is not None:
        yield from _judged("llama-cpp", f"--spec-draft-n-max is {stated:g}", int(stated), config, mend)
    elif own:
        said = f"--spec-draft-n-max is left out, and llama.cpp's default is {LLAMA_DEFAULT}"
        yield from _judged("llama-cpp", said, min(LLAMA_DEFAULT, config.num_drafts), config, mend)
    most = int(stated) if stated is not None else LLAMA_DEFAULT if own else config.num_drafts
    least = min(number(options, "--spec-draft-n-min") or 0, config.num_drafts)
    if least > min(most, config.num_drafts):
        yield Finding(
            "error",
            "llama-cpp",
            f"--spec-draft-n-min is {least:g} and at most {most} are drafted: shorter runs are thrown away, which is all",
            "leave --spec-draft-n-min out",
        )


def _judged(name: str, said: str, drafts: int, config: DrafterConfig, mend: str) -> Iterator[Finding]:
    whole = f"a drafter of block size {config.block_size} makes {config.num_drafts}"
    if drafts <= 0:
        yield Finding("error", name, f"{said}: nothing is drafted, and {whole}", mend)
    elif drafts > config.num_drafts:
        yield Finding("error", name, f"{said}: {drafts} drafts, and {whole}", mend)
    elif drafts < config.num_drafts:
        yield Finding(
            "warning", name, f"{said}: {drafts} drafts, and {whole}", f"{mend}, unless you measured that fewer pay more"
        )
