"""A drafter's steps through `torch.compile`."""

import inspect
from collections.abc import Callable
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
    """`step` as a program, made when it is first called; with torch's own settings where `args` or `options` are given."""
    limits = {"isolate_recompiles": True, "recompile_limit": MOST_PROGRAMS}  # else all drafters of a process share 8
    known = inspect.signature(torch.compile).parameters
    program = torch.compile(step, *args, **{name: value for name, value in limits.items() if name in known}, **options)
    if args or options or device.type != "cpu":
        return program
    from torch._inductor import config

    settings = config.patch({name: value for name, value in FOR_FEW_ROWS.items() if hasattr(config, name)})

    def call(*operands: Any) -> Result:
        # `options` of torch.compile would not do: whether weights are constants is asked when a step is traced, before them.
        with settings:
            return program(*operands)

    return call
