"""llama-server's command line: what the pair needs, and what of it is the caller's to add."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from dflash2_core.config import DrafterConfig
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import CompatibilityError, EngineError

BATCH, UBATCH = 2048, 512
"""llama.cpp's own sizes. They are always said, so that no variable of the environment says others."""
VARIABLES = "LLAMA_ARG_SPEC_"
TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""llama.cpp's names of what keys and values are kept in, and weights."""
CACHES = (("-ctk", "-ctv"), ("-ctkd", "-ctvd"))
"""Options for the types of keys and values: the target's, the drafter's."""
OF_DTYPE = (
    *("-ctk", "-ctv", "-ctkd", "-ctvd", "--cache-type-k", "--cache-type-v", "--cache-type-k-draft", "--cache-type-v-draft"),
    *("--spec-draft-type-k", "--spec-draft-type-v", "-fa", "--flash-attn"),
)
"""What `EngineOptions.dtype` decides."""
OURS = {
    # option -> what to do instead
    **dict.fromkeys(("-m", "--model"), "it is the target"),
    **dict.fromkeys(("-md", "--model-draft", "--spec-draft-model"), "it follows from the drafter"),
    **dict.fromkeys(("--spec-type", "--metrics"), "it is always said"),
    **dict.fromkeys(
        ("--spec-draft-n-max", "--draft", "--draft-max", "--draft-n"),
        "use dflash2's own --drafts (in Python num_drafts) instead",
    ),
    **dict.fromkeys(("-np", "--parallel"), "use dflash2's own --parallel instead"),
    **dict.fromkeys(("-c", "--ctx-size"), "use dflash2's own --context instead"),
    "--host": "use dflash2's own --host instead",
    "--port": "use dflash2's own --port instead",
}
NOT_LOSSLESS = {
    **dict.fromkeys(("--spec-synth-len", "--spec-synth-rates"), "drafts would be kept without the target's consent"),
    "--spec-draft-sampling": "llama.cpp draws no drafts of a DFlash drafter, whatever this says",
}


def server_command(program: Path, target: Path, drafter: tuple[Path, DrafterConfig] | None, options: EngineOptions) -> Command:
    """What would be run; drafter: its GGUF and what stands in it.

    Raises CompatibilityError where the sizes do not go together, EngineError for an option that is not the caller's to give.
    """
    _refuse_foreign(options)
    argv = [str(program), "-m", str(target), "--host", options.host, "--port", str(options.port), "--metrics"]
    argv += ["-np", str(options.parallel)]
    if options.context is not None:
        argv += ["-c", str(options.context * options.parallel)]
    rows = 1
    if drafter is not None:
        path, config = drafter
        num_drafts = options.drafts_of(config)  # always said: llama.cpp's default is 3
        rows = options.parallel * (num_drafts + 1)
        argv += ["-md", str(path), "--spec-type", "draft-dflash", "--spec-draft-n-max", str(num_drafts)]
    if options.dtype is not None:
        argv += _computing_in(options.dtype, drafts=drafter is not None)
    argv += _batch_sizes(rows, options)
    return Command(argv=(*argv, *options.extra))


def _computing_in(dtype: str, *, drafts: bool) -> list[str]:
    """Sums are in float32 whatever the weights are stored in; keys and values are not, nor is its flash attention."""
    said = [part for pair in CACHES[: 1 + drafts] for option in pair for part in (option, TYPES[dtype])]
    return ["-fa", "off", *said] if dtype == "float32" else said


def _batch_sizes(rows: int, options: EngineOptions) -> list[str]:
    """The drafter's blocks of all requests go through one pass, and llama.cpp aborts where they do not fit into it."""
    extra = _values(options.extra, {"-b": "-b", "--batch-size": "-b", "-ub": "-ub", "--ubatch-size": "-ub"})
    batch, ubatch = extra.get("-b", max(BATCH, rows)), extra.get("-ub", max(UBATCH, rows))
    if min(batch, ubatch) < rows:
        raise CompatibilityError(
            f"a pass takes {min(batch, ubatch)} rows (-ub {ubatch}, -b {batch}) and the blocks of {options.parallel} requests "
            f"have {rows}, {rows // options.parallel} each: llama.cpp would abort; let -ub and -b be at least {rows}"
        )
    said = [] if "-b" in extra else ["-b", str(batch)]
    return said if "-ub" in extra else [*said, "-ub", str(ubatch)]


def _values(extra: Sequence[str], names: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for option, value in pairwise([*extra, ""]):
        if option in names:
            if not value.isdigit():
                raise EngineError(f"{option} is followed by {value!r}: expected a number of rows")
            found[names[option]] = int(value)
    return found


def _refuse_foreign(options: EngineOptions) -> None:
    ours = OURS if options.dtype is None else OURS | options.said_already | dict.fromkeys(OF_DTYPE, "it follows from the dtype")
    for argument in options.extra:
        option = argument.partition("=")[0]
        if option in ours:
            raise EngineError(f"{option} is not handed on to llama-server: {ours[option]}")
        if option in NOT_LOSSLESS:
            raise EngineError(f"{option} is not handed on to llama-server: {NOT_LOSSLESS[option]}")
    if set_ := sorted(name for name in os.environ if name.startswith(VARIABLES)):
        raise EngineError(f"{', '.join(set_)} would change what llama-server drafts, unseen in its command: unset it")
