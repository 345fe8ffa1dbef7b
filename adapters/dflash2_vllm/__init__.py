"""DFlash 2 in vLLM: a plugin for its V1 runner, and an `Engine` that starts it.

Inside vLLM's processes:
plugin.py     register(), the entry point: looks at the hooks, then puts in place what follows, or nothing
hooks.py      everything of vLLM that is touched or leaned on, with signatures
asked.py      what the user asked for, completed before vLLM makes a config of it
checks.py     what cannot be right is refused, in sentences
drafters.py   the drafter that a config names, read by the core
conform.py    vLLM's config of the drafter made to say what the core read
proposer.py   the proposer: vLLM's model and paged K/V, the core's candidates, walk and q
drafting.py   a block's drafts, on tensors
seeds.py      which draws they come from
limits.py     rows near the limit of positions
mends.py      faults of vLLM's CPU build, probed and mended
report.py     what vLLM looks like from inside

Outside:
engine.py     Vllm, the `Engine` that `dflash2 serve --engine vllm` finds
interpreter.py  vLLM's own Python, and what is installed in it
pair.py       does this drafter work on that target?
arguments.py  the command line, and what of it is the caller's to add
server.py     the running API server
requests.py   SamplingParams -> a body for /v1/completions, and the answer back
metrics.py    /metrics -> AcceptanceStats

Faults of vLLM that were met are in UPSTREAM.md. Imports the core, and no other adapter.
"""

from dflash2_vllm.engine import Vllm

__all__ = ["Vllm"]
