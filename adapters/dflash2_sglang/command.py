"""SGLang's command line: what the pair needs, and what of it is the caller's to add."""

import os
from pathlib import Path

from dflash2_core.checkpoint import Checkpoint
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError
from dflash2_core.server_process import free_port
from dflash2_sglang.pair import num_draft_tokens

SERVER = ("-m", "sglang.launch_server")
ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
"""SGLang is told to be on a CPU; compiling the draft model's convolutions would want a C++ compiler, and minutes."""
MEMORY = "--mem-fraction-static"
"""Of what is free when SGLang starts."""
OURS = {
    # option -> what to do instead
    **dict.fromkeys(("--model-path", "--model"), "it is the target"),
    **dict.fromkeys(
        ("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model"),
        "it follows from the drafter",
    ),
    **dict.fromkeys(
        ("--speculative-num-draft-tokens", "--speculative-dflash-block-size"),
        "use dflash2's own --drafts (in Python num_drafts) instead",
    ),
    "--max-running-requests": "use dflash2's own --parallel instead",
    "--context-length": "use dflash2's own --context instead",
    "--host": "use dflash2's own --host instead",
    "--port": "use dflash2's own --port instead",
}
SEEDS = "--enable-deterministic-inference"
NOT_LOSSLESS = ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")


def server_command(
    python: Path, target: Path, drafter: tuple[Path, Checkpoint] | None, options: EngineOptions, *, on_cpu: bool
) -> Command:
    """What would be run; drafter: its folder and what stands in it.

    Raises CompatibilityError for more drafts than a block has, EngineError for an option that is not the caller's to give.
    """
    _refuse_foreign(options)
    if on_cpu and SEEDS in options.extra:
        raise EngineError(
            f"{SEEDS} is not handed on to SGLang: it is for attention backends that a CPU does not have, so that a request's "
            "seed has no effect there, with a drafter or without"
        )
    if options.drafter_dtype is not None:
        raise EngineError(
            f"SGLang runs a drafter in the target's own dtype: {options.drafter_dtype} is not for it to say; give a dtype"
        )
    port = options.port or free_port(options.host)
    argv = [str(python), *SERVER, "--model-path", str(target), "--host", options.host, "--port", str(port)]
    argv += ["--max-running-requests", str(options.parallel)]
    if options.context is not None:
        argv += ["--context-length", str(options.context)]
    if options.dtype is not None:
        argv += ["--dtype", options.dtype]
    if options.memory is not None:
        argv += [MEMORY, str(options.memory)]
    if on_cpu:
        argv += ["--device", "cpu", "--attention-backend", "torch_native"]
    if drafter is not None:
        path, checkpoint = drafter
        rows = num_draft_tokens(options.drafts_of(checkpoint.config) + 1, checkpoint)
        argv += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(path)]
        argv += ["--speculative-num-draft-tokens", str(rows)]
    env = {name: value for name, value in ON_CPU.items() if on_cpu and name not in os.environ}
    return Command(argv=(*argv, *options.extra), env=env)


def _refuse_foreign(options: EngineOptions) -> None:
    ours = OURS | options.said_already | ({} if options.memory is None else {MEMORY: "use dflash2's own --memory instead"})
    for argument in options.extra:
        option = argument.partition("=")[0].replace("_", "-")
        if option in ours:
            raise EngineError(f"{option} is not handed on to SGLang: {ours[option]}")
        if option in NOT_LOSSLESS:
            raise EngineError(f"{option} is not handed on to SGLang: drafts would be kept that the target does not choose")
    if float(os.environ.get("SGLANG_SIMULATE_ACC_LEN") or -1) > 0:
        raise EngineError("SGLANG_SIMULATE_ACC_LEN would keep drafts that the target does not choose: unset it")
