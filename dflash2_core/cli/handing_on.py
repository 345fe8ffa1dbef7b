"""Arguments behind `--`, which are the engine's and never this command's, whatever stands before them."""

from collections.abc import MutableMapping
from typing import Any

import typer
from typer.core import TyperCommand

BEHIND = "dflash2.behind"


class HandsOn(TyperCommand):
    """A command whose usage ends in `[-- ENGINE ARGUMENTS]`; see `handed_on`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps what stands behind the first `--` from being read as arguments."""
        own, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        found: MutableMapping[str, Any] = ctx.meta
        found[BEHIND] = tuple(behind)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """For `--help`."""
        return [*super().collect_usage_pieces(ctx), "[-- ENGINE ARGUMENTS]"]


def handed_on(ctx: typer.Context) -> tuple[str, ...]:
    """What stood behind `--`."""
    found: tuple[str, ...] = ctx.meta[BEHIND]
    return found
