"""The types of weights: engines run a drafter in its target's."""

from collections.abc import Iterator

from dflash2_core.checkpoint.examination import FLOAT16_LARGEST
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, TargetSide
from dflash2_core.diagnosis.finding import Finding

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "f64": 8, "f32": 4, "f16": 2, "bf16": 2}
SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""torch's name -> ggml's, and safetensors' in lower case."""


def dtype_findings(drafter: DrafterSide, target: TargetSide) -> Iterator[Finding]:
    """Of a drafter in a folder; a GGUF is run as it is stored."""
    if drafter.layout == GGUF or target.dtype not in BYTES:
        return
    runs_in = short(target.dtype)
    if runs_in == "f16":
        large = [name for name, weights in drafter.weights.items() if weights.largest > FLOAT16_LARGEST]
        if large:
            yield Finding(
                "error",
                "dtype",
                f"{large[0]} holds {drafter.weights[large[0]].largest:.3g}, and the target's float16 ends at "
                f"{FLOAT16_LARGEST:g}",
                "run both in bfloat16 or float32 (--dtype)",
            )
    wider = [dtype for dtype in drafter.dtypes if BYTES.get(dtype, 0) > BYTES[runs_in]]
    if wider or (runs_in == "f16" and "bf16" in drafter.dtypes) or (runs_in == "bf16" and "f16" in drafter.dtypes):
        stored = ", ".join(drafter.dtypes)
        yield Finding(
            "note",
            "dtype",
            f"the drafter is stored in {stored} and the target in {runs_in}: engines run it in {runs_in}, which rounds weights",
            "nothing to mend where acceptance is as published",
        )


def short(dtype: str) -> str:
    """One name for one type."""
    return SHORT.get(dtype, dtype)
