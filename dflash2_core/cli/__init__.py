"""The command `dflash2`: one module a command, and the one place where errors become a sentence and an exit code.

Exit codes: 0 done, 1 a finding, 2 could not run.
"""

import io
import os
import sys
from typing import Annotated

import typer

from dflash2_core import __version__
from dflash2_core.cli.bench import bench
from dflash2_core.cli.convert import convert_command
from dflash2_core.cli.doctor import doctor
from dflash2_core.cli.export_gguf import export_gguf
from dflash2_core.cli.generate import generate
from dflash2_core.cli.handing_on import HandsOn
from dflash2_core.cli.inspect import inspect
from dflash2_core.cli.manifest import manifest
from dflash2_core.cli.recipe import recipe
from dflash2_core.cli.serve import serve
from dflash2_core.cli.train import train
from dflash2_core.cli.verify import verify
from dflash2_core.errors import Dflash2Error

app = typer.Typer(
    name="dflash2",
    help="DFlash 2 speculative decoding: the target's own text, in far fewer of its passes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(generate)
app.command()(inspect)
app.command()(train)
app.command("export-gguf")(export_gguf)
app.command("convert")(convert_command)
app.command()(manifest)
app.command()(recipe)
app.command(cls=HandsOn)(serve)
app.command(cls=HandsOn)(verify)
app.command(cls=HandsOn)(doctor)
app.command(cls=HandsOn)(bench)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"dflash2 {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass


EXTRAS = {"transformers": "transformers", "tokenizers": "transformers", "gguf": "gguf", "PIL": "bench"}
"""Module -> the extra that brings it."""


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are local folders; nothing here reaches for a hub
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to stop
    try:
        app(prog_name="dflash2")
    except Dflash2Error as error:
        sys.exit(_could_not_run(str(error)))
    except ImportError as error:
        if error.name not in EXTRAS:
            raise
        sys.exit(_could_not_run(f"this command needs {error.name}: pip install 'dflash2[{EXTRAS[error.name]}]'"))
    except UnicodeDecodeError as error:
        sys.exit(_could_not_run(f"what was read is not UTF-8 text: {error}"))
    except KeyboardInterrupt:
        sys.exit(130)


def _could_not_run(sentence: str) -> int:
    print(f"dflash2: {sentence}", file=sys.stderr)
    return 2
