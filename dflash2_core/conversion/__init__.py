"""A drafter from one layout to another: the same drafter, or a refusal that names what would be lost.

sources.py    what is converted: a config and tensors, from a folder or from a GGUF that the caller has read
refusals.py   what speculators cannot hold, or would run as something else
types.py      in which types the weights are written
cards.py      licence, model card and manifest, which go with the weights
folders.py    convert: a folder in the z-lab or speculators layout, there only when whole and read back

A GGUF is read and written by `gguf_export`, which the core does not import: see `dflash2_core/cli/convert.py`.
"""

from dflash2_core.conversion.folders import Converted, convert
from dflash2_core.conversion.sources import Source, open_source
from dflash2_core.conversion.types import exact_outtype

__all__ = ["Converted", "Source", "convert", "exact_outtype", "open_source"]
