"""A drafter's steps through `torch.compile`."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

FOR_FEW_ROWS: dict[str, Any] = {
    "freezing": True,  # weights are constants of the program, laid out for the product that reads them
    "cpp_wrapper": True,  # from one kernel to the next without Python
    "max_autotune": True,  # products in code made for their very shapes, where that is faster than the library's
    "max_autotune_gemm_backends": "CPP,ATEN",
    "max_autotune_report_choices_stats": False,  # it tries silently
    "autotune_num_choices_displayed": 0,
}
"""What the inductor is told where a drafter runs on a CPU: the library's products are made for more rows than a block has."""

MOST_PROGRAMS = 64
"""Of one step of one drafter: greedy and sampled, one row and many, whole blocks and cut ones, each in ranges of lengths."""


def compiled(
    step: Callable[..., Result], device: torch.device, args: tuple[Any, ...], options: dict[str, Any]
) -> Callable[..., Result]:
    """A drafter's method `step` as a program, made when it is first called; with torch's own settings where `args` or `options`
    are given."""
    if args or options or device.type != "cpu":
        return torch.compile(step, *args, **_alone(), **options)
    from torch._inductor import config

    told = {name: value for name, value in FOR_FEW_ROWS.items() if hasattr(config, name)}
    if alone := _alone():  # and so no other drafter is meant
        told["guard_filter_fn"] = _but_the_drafter
    program = torch.compile(step, options=told, **alone)
    constant_weights = config.patch(freezing=True)
    warnings.filterwarnings("ignore", "TypedStorage is deprecated", module=r"torch\._inductor")  # its own way of trying

    def call(*operands: Any) -> Result:
        with constant_weights:  # asked when a step is traced, before the options are looked at
            return program(*operands)

    return call


def _alone() -> dict[str, Any]:
    """Programs of one drafter count for themselves; in a torch that cannot do so all of a process share eight."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        return {}
    return {"isolate_recompiles": True, "recompile_limit": MOST_PROGRAMS}


def _but_the_drafter(guards: Sequence[Any]) -> list[bool]:
    """Which conditions are asked at each call, of hundreds. Nobody changes the drafter, nor the target's modules: of those only
    whether their weights are the same ones."""
    return [
        not guard.name.startswith("self") and ("_modules[" not in guard.name or guard.guard_type == "ID_MATCH")
        for guard in guards
    ]
