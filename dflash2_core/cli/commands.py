"""The command line: its commands by their names."""

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
