"""`dflash2 serve`: an engine with a drafter, checked before it starts, in the foreground."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash2_core.cli.handing_on import handed_on
from dflash2_core.cli.opening import as_manifested
from dflash2_core.ending import ENDS
from dflash2_core.engine_process import EngineProcess
from dflash2_core.engines import DTYPES, Command, EngineOptions, find_engine
from dflash2_core.errors import EngineError


def serve(
    ctx: typer.Context,
    target: Annotated[Path, typer.Argument(help="The target, as the engine takes it; for llama-cpp a GGUF.")],
    drafter: Annotated[
        Path | None,
        typer.Argument(help="The drafter: its folder, or for llama-cpp its GGUF too. Without one the target is served alone."),
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine, of those whose adapters are installed.")] = "llama-cpp",
    program: Annotated[Path | None, typer.Option(help="The engine's program. Default: where its adapter finds it.")] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 lets the system choose.")] = 8080,
    parallel: Annotated[int, typer.Option(help="Requests decoded at once.")] = 1,
    context: Annotated[
        int | None, typer.Option(help="Positions of one request, prompt and output. Default: the engine's choice.")
    ] = None,
    drafts: Annotated[int | None, typer.Option(help="Drafts per cycle. Default: the drafter's block size - 1.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"What is computed in, of {', '.join(DTYPES)}. Default: the engine's choice.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(help="Share of the memory that vLLM or SGLang may take. Default: theirs, which is nearly all of it."),
    ] = None,
    outtype: Annotated[
        str | None,
        typer.Option(help="How the weights of a drafter's folder are stored for llama-cpp. Default: --dtype, else bf16."),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of files made for the engine. Default: the user's cache.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print the command, and start nothing.")] = False,
) -> None:
    """Start an engine with a drafter that was found to fit; prints the very command that it runs.

    What stands behind -- is handed on to the engine as it is.
    """
    options = EngineOptions(
        host=host,
        port=port,
        parallel=parallel,
        context=context,
        num_drafts=drafts,
        dtype=dtype,
        drafter_dtype=outtype,
        memory=memory,
        cache=cache,
        extra=handed_on(ctx),
    )
    if drafter is not None:
        as_manifested(drafter)
    found = find_engine(engine, program)
    command = found.command(_from_anywhere(target), drafter and _from_anywhere(drafter), options)
    print(command, flush=True)
    if not dry_run:
        for note in found.notes:
            print(f"dflash2: {note}", file=sys.stderr)
        _run(command)


def _from_anywhere(model: Path) -> Path:
    """What is here, as it is called from elsewhere: a unit file runs in another folder. Other names the engine knows."""
    return model.absolute() if model.exists() else model


def _run(command: Command) -> None:
    """Until it ends, or is ended with this process. EngineError where it ends by itself with anything but 0."""
    running = _InTheForeground()
    with running.told_of(ENDS):
        code = running.run(command)
    if code and not running.times_told:
        raise EngineError(f"{Path(command.argv[0]).name} ended with code {code}; what it said stands above")


class _InTheForeground:
    """An engine in a process group of its own: Ctrl-C of a terminal reaches this process alone.

    Engines of several processes do not expect that each of them is interrupted. The first signal asks the engine to end, the
    second ends it at once. Nothing of its group is left behind.
    """

    def __init__(self) -> None:
        self.times_told = 0
        self._process: EngineProcess | None = None

    @contextmanager
    def told_of(self, numbers: Sequence[signal.Signals]) -> Iterator[None]:
        """But for those that were ignored before, as `nohup` has it. Once told, there is nothing more to be told."""
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._told) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.times_told else handler)

    def run(self, command: Command) -> int:
        self._process = EngineProcess(command)
        if self.times_told:  # before there was anything to end
            self._process.terminate()
        code = self._process.wait()
        self._process.end_group()
        return code

    def _told(self, number: int, _: Any) -> None:
        self.times_told += 1
        if self._process is None:
            return
        if self.times_told == 1:
            self._process.terminate()
        else:
            self._process.kill_group()
