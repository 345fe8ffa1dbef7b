"""vLLM's /metrics -> AcceptanceStats."""

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engine_metrics import counted

PREFIX = "vllm:spec_decode_num_"


def acceptance(metrics: str) -> AcceptanceStats:
    """Of the text of /metrics, summed over vLLM's engines."""
    return counted(metrics, PREFIX, name="vLLM")
