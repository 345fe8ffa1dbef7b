"""The engine `llama-cpp`: what `dflash2 serve --engine llama-cpp` and the tests talk to."""

from pathlib import Path

from dflash2_core.engines import Command, EngineOptions, EngineReport
from dflash2_core.errors import Dflash2Error, EngineError
from dflash2_llama_cpp.arguments import TYPES, server_command
from dflash2_llama_cpp.exports import as_gguf, exported
from dflash2_llama_cpp.pair import check_pair, open_target
from dflash2_llama_cpp.program import TESTED_BUILD, Version, find_program, knows_dflash2, read_version
from dflash2_llama_cpp.server import LlamaServer

NOTES = (
    "llama.cpp drafts the most probable path at every temperature and keeps a draft where it equals what the target samples "
    "itself: the text is that of plain llama.cpp, also for a given seed, and above temperature 0 fewer drafts are kept than by "
    "sampling them",
    "a text that runs into the context's end may end up to block size - 1 tokens before plain llama.cpp's: give max_tokens",
)


class LlamaCpp:
    """See `dflash2_core.engines.Engine`. program: llama-server, else see `find_program`."""

    name = "llama-cpp"
    notes = NOTES

    def __init__(self, program: Path | None = None) -> None:
        self._setting = program

    @property
    def interpreter(self) -> Path:
        """llama-server itself, which needs no Python."""
        return find_program(self._setting)

    def probe(self) -> EngineReport:
        """Runs `llama-server --version`, nothing else."""
        program, version, problems = None, None, []
        try:
            program = self.interpreter
            version = _usable_version(program)
        except Dflash2Error as problem:
            problems.append(str(problem))
        return EngineReport(
            name=self.name,
            program=program,
            version=None if version is None else version.text,
            tested=version is not None and version.build == TESTED_BUILD,
            route="none" if problems else "native",
            notes=self.notes,
            problems=tuple(problems),
        )

    def command(self, target: Path, drafter: Path | None, options: EngineOptions) -> Command:
        """Checks the pair and says what would be run.

        target   a GGUF; the embedded pair's folder is written as one into `options.cache`
        drafter  a GGUF made for it, or the folder of a checkpoint, which is exported into `options.cache` first;
                 None: the target alone
        """
        program = self.interpreter
        _usable_version(program)
        target = as_gguf(target, cache=options.cache)
        if drafter is None:
            open_target(target)
            return server_command(program, target, None, options)
        if drafter.is_dir():
            open_target(target)
            outtype = options.drafter_dtype or (options.dtype and TYPES[options.dtype])
            drafter = exported(drafter, target, outtype=outtype, cache=options.cache)
        elif options.drafter_dtype is not None:
            raise EngineError(
                f"{drafter} is a GGUF already, whose weights stay as they are: give {options.drafter_dtype} with the folder of "
                "a checkpoint"
            )
        pair = check_pair(target, drafter)
        return server_command(program, target, (drafter, pair.config), options)

    def start(self, target: Path, drafter: Path | None, options: EngineOptions) -> LlamaServer:
        """`command`, run, until it answers; EngineError with the end of its log where it does not."""
        return LlamaServer(self.command(target, drafter, options), options)

    def attach(self, url: str, options: EngineOptions, *, drafts: bool) -> LlamaServer:
        """See `Engine`."""
        return LlamaServer(url, options)


def _usable_version(program: Path) -> Version:
    version = read_version(program)
    if not knows_dflash2(program):
        raise EngineError(
            f"{program} is llama.cpp {version.text}, which does not know DFlash 2: build {TESTED_BUILD} does, and "
            "`bash ci/llama_cpp.sh` in a checkout of dflash2 builds it"
        )
    return version
