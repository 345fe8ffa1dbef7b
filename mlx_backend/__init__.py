"""The drafter's math in MLX, for Apple silicon and whatever else MLX runs on: a block of greedy drafts, as the core makes them.

drafter.py   MlxDrafter: weights, the layers, a block     context.py   the keys and values of committed tokens
math.py      convolution, rotation, visibility, selector: plain functions of arrays

It reads checkpoints with the core and gives ids, for one request at a time; a target, its cache and the verification are the
caller's. Needs the PyPI package `mlx` (the extra `mlx`; on Linux `mlx[cpu]`). Imports the core, never an adapter.
"""

from mlx_backend.context import MlxContext
from mlx_backend.drafter import MlxDrafter, load

__all__ = ["MlxContext", "MlxDrafter", "load"]
