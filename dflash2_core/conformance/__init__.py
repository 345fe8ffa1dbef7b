"""Is an engine's output lossless? What `dflash2` can say of texts that any engine wrote."""

from dflash2_core.conformance.law import LawReport, Written, check_law

__all__ = ["LawReport", "Written", "check_law"]
