"""llama-server's /metrics -> AcceptanceStats."""

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.engine_metrics import counted

PREFIX = "llamacpp:spec_decode_num_"


def acceptance(metrics: str) -> AcceptanceStats:
    """Of the text of /metrics. An end of sequence that was drafted counts as the target's own token."""
    return counted(metrics, PREFIX, name="llama-server")
