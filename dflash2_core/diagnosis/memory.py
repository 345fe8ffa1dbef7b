"""What a drafter adds to the memory of its target.

    weights   parameters * bytes of the target's type, in llama.cpp as they are stored; embedding and head are the target's
    K/V       2 * layers * rows * kv_heads * (positions + block + 1) * head_dim * bytes

positions are those of the context, or window - 1 where every layer slides: a layer that sees everything keeps everything. The
block's own rows stand beside them, and one slot takes what is not kept (`drafter/context.py`).
"""

from dataclasses import asdict, dataclass
from typing import Any

from dflash2_core.config import DrafterConfig
from dflash2_core.diagnosis.dtypes import BYTES, short
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, TargetSide

ROWS = 1


@dataclass(frozen=True, kw_only=True)
class Memory:
    """In bytes, for `rows` requests at once of `context` positions each.

    positions    of a row that the drafter keeps      whole_context  keys and values of an engine that forgets no position
    dtype        that is counted with
    """

    rows: int
    context: int
    positions: int
    dtype: str
    weights: int
    keys_and_values: int
    whole_context: int

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)


def kept_positions(config: DrafterConfig, context: int) -> int:
    """Of a row: the context, or what the widest window leaves of it where every layer slides."""
    windows = [window for window in config.layer_windows if window is not None]
    if len(windows) < config.num_hidden_layers:
        return context
    return min(context, max(1, max(windows) - 1), config.max_position_embeddings)


def keys_and_values(config: DrafterConfig, *, rows: int, positions: int, itemsize: int) -> int:
    """Bytes of the buffers of a `DrafterContext` that has `positions` slots a row.

    It grows by doubling: while it grows it may have up to twice the positions that are needed, once it is a ring no more.
    """
    slots = positions + config.block_size + 1
    return 2 * config.num_hidden_layers * rows * config.num_key_value_heads * slots * config.head_dim * itemsize


def memory_of(
    drafter: DrafterSide, target: TargetSide | None, *, rows: int = ROWS, context: int | None = None
) -> Memory | None:
    """context None: as much as both have. None where the drafter's config could not be read."""
    config = drafter.config
    if config is None:
        return None
    longest = config.max_position_embeddings
    if target is not None and target.context_length is not None:
        longest = min(longest, target.context_length)
    context = context or longest
    stored = next((dtype for dtype in drafter.dtypes if dtype in BYTES), "f32")
    runs_in = target.dtype if target is not None and target.dtype in BYTES else stored
    as_stored = drafter.layout == GGUF or (target is not None and target.layout == GGUF)
    dtype = "f16" if as_stored else short(runs_in)  # llama.cpp's own type of keys and values
    itemsize = BYTES[dtype]
    positions = kept_positions(config, context)
    return Memory(
        rows=rows,
        context=context,
        positions=positions,
        dtype=dtype,
        weights=drafter.num_bytes if as_stored else drafter.num_parameters * itemsize,
        keys_and_values=keys_and_values(config, rows=rows, positions=positions, itemsize=itemsize),
        whole_context=keys_and_values(config, rows=rows, positions=context, itemsize=itemsize),
    )
