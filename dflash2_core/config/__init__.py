"""One validated description of a drafter, whatever layout it came from.

drafter.py       DrafterConfig: the description and its laws
zlab.py          config.json as the z-lab / Inco checkpoints write it
speculators.py   config.json as speculators 0.9 writes it
keys.py          tables: keys that carry no information here, keys whose meaning is refused
attention.py     windows and causality of each layer, from the many keys that speak of them, and back
rope.py          rotary parameters, from both generations of keys, and back
reading.py       typed reading of a mapping: what is missing, contradictory, mistyped or unread is named
limits.py        what a config must satisfy before a byte is allocated
documents.py     a JSON document from disk, bounded and strict
"""

from dflash2_core.config.drafter import DrafterConfig, diagnose
from dflash2_core.config.reading import InvalidConfigError

__all__ = ["DrafterConfig", "InvalidConfigError", "diagnose"]
