"""A real llama-server on the embedded pair. Nothing is skipped: without the program of `ci/llama_cpp.sh` these tests fail."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from dflash2_core import Completion
from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_llama_cpp import LlamaCpp
from dflash2_llama_cpp.program import BUILT_BY_CI, VARIABLE
from dflash2_llama_cpp.server import LlamaServer
from gguf_export import export
from gguf_export.embedded import write_embedded_target
from tests.engines.pair import thirty_prompts, written_plainly, written_with_drafts

EXACT = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32")
"""float32 throughout; one thread, since the machine is shared."""
OUTTYPES = ("f32", "bf16", "q8_0", "q4_0")

Serve = Callable[..., LlamaServer]


@pytest.fixture(scope="session", autouse=True)
def _the_program_that_ci_built() -> Iterator[None]:
    """Whatever else of that name the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(Path(__file__).parents[2] / BUILT_BY_CI))
        yield


@pytest.fixture(scope="session")
def engine() -> LlamaCpp:
    return LlamaCpp()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the target and its drafter in every type, as GGUFs."""
    folder, pair = tmp_path_factory.mktemp("pair"), tiny_pair()
    target = write_embedded_target(folder / "target.gguf")
    for outtype in OUTTYPES:
        export(pair.drafter, folder / f"{outtype}.gguf", tokenizer_from=target, outtype=outtype)
    return folder


@pytest.fixture(scope="session")
def target(files: Path) -> Path:
    return files / "target.gguf"


@pytest.fixture(scope="session")
def serve(engine: LlamaCpp, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """(outtype of the drafter or None, parallel, context, extra arguments) -> a server, the same one when asked again."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as running:

        @cache
        def start(
            outtype: str | None, parallel: int = 1, context: int | None = None, extra: tuple[str, ...] = EXACT
        ) -> LlamaServer:
            log = logs / f"{outtype}-{parallel}-{context}-{len(extra)}.log"
            options = EngineOptions(parallel=parallel, context=context, extra=extra, log=log, ready_within=120)
            drafter = None if outtype is None else files / f"{outtype}.gguf"
            return running.enter_context(engine.start(files / "target.gguf", drafter, options))

        yield start


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    return thirty_prompts()


@pytest.fixture(scope="session")
def by_transformers() -> list[Completion]:
    return written_plainly()


@pytest.fixture(scope="session")
def drafted_by_transformers() -> list[Completion]:
    return written_with_drafts()
