"""llama.cpp's `llama-server` with a DFlash 2 drafter: found, checked, started, asked. It drafts natively; nothing is patched.

engine.py    LlamaCpp, the `Engine` that `dflash2 serve --engine llama-cpp` finds
program.py   where llama-server is, its version, whether it knows DFlash 2
pair.py      does this drafter's GGUF work on that target's? Everything that llama.cpp aborts on, or is silent about
arguments.py the command line, and what of it is the caller's to add
exports.py   a drafter's folder -> its GGUF in the cache
server.py    the running process: until it answers, what it is asked, its end
requests.py  SamplingParams -> a body for /completion, and the answer back
metrics.py   /metrics -> AcceptanceStats

Faults of llama.cpp that were met are in UPSTREAM.md. Imports the core and `gguf_export`, and no other adapter.
"""

from dflash2_llama_cpp.engine import LlamaCpp

__all__ = ["LlamaCpp"]
