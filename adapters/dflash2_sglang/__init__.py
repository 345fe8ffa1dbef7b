"""DFlash 2 in SGLang on a CPU: a plugin of SGLang's, and the engine `sglang` of `dflash2 serve`.

Outside of SGLang's processes:
engine.py       Sglang, the `Engine` that `dflash2 serve --engine sglang` finds
interpreter.py  SGLang's own Python                 report.py     what it says of the hooks, asked from outside
command.py      the command line                    server.py     the running server, asked in ids
generating.py   SamplingParams -> /generate         metrics.py    `meta_info` -> AcceptanceStats

In SGLang's processes:
plugin.py     the entry point: looks, and puts the hooks in place or says in one line why not
hooks.py      all that is touched in SGLang and all that is relied on, with the signatures expected
algorithm.py  the names DFLASH2 (registered) and DFLASH (hooked)
arguments.py  the server's arguments, checked and settled
pair.py       does this drafter work on that target?
worker.py     SGLang's DFLASH worker with the core's proposal and verification
model.py      SGLang's draft model held against the checkpoint
proposal.py   hidden states -> Proposal          law.py      the law that plain SGLang samples from
requests.py   what a request asks, or its refusal  history.py  what each request has written
cpu/          what SGLang lacks on a CPU, DFlash or not

Hooks, and not an out-of-tree platform (`sglang.srt.platforms`): a platform would be chosen for every server of the environment,
drafter or not, and turns some two dozen branches of SGLang's; the hooks act where `--speculative-algorithm` says DFLASH.

Faults of SGLang that were met are in UPSTREAM.md. Imports the core and no other adapter.
"""

from dflash2_sglang.engine import Sglang

__all__ = ["Sglang"]
