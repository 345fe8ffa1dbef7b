"""A DFlash drafter as GGUF (architecture `dflash`, as llama.cpp reads it), and back.

exporting.py     export: the walk from a checkpoint to a file that is there only when whole
reading.py       read: from a file to DrafterConfig and tensors, dequantised when asked for
restoring.py     restored: the same as a checkpoint would hold it, for `dflash2 convert`
examination.py   examine: what a GGUF is and what is wrong with it, for `dflash2 inspect`
header.py        keys and tensor places of a GGUF, checked against the file's size
keys.py          DrafterConfig in `dflash.*` keys, and back        rope.py   its rotary part
names.py         tensor names, both ways
outtypes.py      which tensor is stored as what, and the conversion
target.py        what is needed of the target: sizes, tokenizer     bpe.py    a tokenizer from a Hugging Face folder
refusals.py      what llama.cpp cannot run, as sentences, before anything is written
provenance.py    `general.*`: where the weights come from
writing.py       the file, tensor by tensor             embedded.py   the embedded pair's target

Needs the PyPI package `gguf` (the extra `gguf`). Imports the core, never an adapter.
"""

from gguf_export.examination import examine
from gguf_export.exporting import Exported, export
from gguf_export.outtypes import OUTTYPES
from gguf_export.reading import read
from gguf_export.restoring import restored

__all__ = ["OUTTYPES", "Exported", "examine", "export", "read", "restored"]
