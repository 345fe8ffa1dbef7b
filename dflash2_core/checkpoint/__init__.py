"""Drafters on disk: config.json beside safetensors, validated from their headers before a weight is touched.

names.py     canonical tensor names, and why a tensor that is none of them is refused
header.py    the header of one safetensors file
files.py     which files of a folder are the checkpoint's, and which make it unsafe or ambiguous
reading.py   open_checkpoint: everything consumed or refused by name
writing.py   write_checkpoint: byte for byte the same for the same drafter
"""

from dflash2_core.checkpoint.reading import Checkpoint, InvalidCheckpointError, Survey, open_checkpoint, survey
from dflash2_core.checkpoint.writing import write_checkpoint
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes

__all__ = [
    "Checkpoint",
    "InvalidCheckpointError",
    "Survey",
    "open_checkpoint",
    "optional_tensor_shapes",
    "survey",
    "tensor_shapes",
    "write_checkpoint",
]
