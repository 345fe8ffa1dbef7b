"""SGLang's servers as the tests start them: with the embedded target, in float32."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_sglang import Sglang
from dflash2_sglang.server import SglangServer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs/sglang/bin/python"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
EXACT = ("--dtype", "float32")
SMALL = ("--max-total-tokens", "20000", "--mem-fraction-static", "0.2", "--skip-server-warmup", "--sleep-on-idle")
"""A pool for 32 texts; an idle server leaves the cores to others."""
COMPACT = ("--constrained-json-disable-any-whitespace",)
"""A model this small would fill a text under a schema with white space."""
PARALLEL = 32


@contextmanager
def running(
    log: Path,
    *extra: str,
    drafter: Path | None = None,
    algorithm: str = "DFLASH",
    parallel: int = PARALLEL,
    dtype: tuple[str, ...] = EXACT,
    environment: Mapping[str, str] | None = None,
    instead: Path | None = None,
) -> Iterator[SglangServer]:
    """A server of the embedded target. drafter: None for plain SGLang; instead: a drafter that SGLang gets unchecked."""
    engine = Sglang(PYTHON)
    options = EngineOptions(parallel=parallel, extra=(*dtype, *SMALL, *COMPACT, *extra), log=log, ready_within=600)
    with patch.dict(os.environ, ENVIRONMENT | dict(environment or {})):
        command = engine.command(tiny_pair().target, drafter, options)
        changes = {"DFLASH": algorithm, str(drafter): str(instead or drafter)}
        argv = tuple(changes.get(argument, argument) for argument in command.argv)
        with SglangServer(replace(command, argv=argv), options) as server:
            try:
                yield server
            finally:  # asked to end, it would take ten seconds over it
                os.killpg(server._process.pid, signal.SIGKILL)
