"""What `torch.compile` is told where a drafter runs on a CPU."""

from typing import Any

import torch

FOR_FEW_ROWS: dict[str, Any] = {
    "freezing": True,  # weights are constants, laid out for the product that reads them; they are then there twice
    "cpp_wrapper": True,  # from one kernel to the next without Python
    "max_autotune": True,  # products of these very shapes, in code made for them where that is faster than the library's
    "max_autotune_gemm_backends": "CPP,ATEN",
}


def for_few_rows() -> dict[str, Any]:
    """Options of the inductor, of those that this version of torch knows; nothing of its search is printed."""
    from torch._inductor import select_algorithm

    if hasattr(select_algorithm, "PRINT_AUTOTUNE"):
        select_algorithm.PRINT_AUTOTUNE = False
    known = torch._inductor.list_options()
    return {name: value for name, value in FOR_FEW_ROWS.items() if name in known}
