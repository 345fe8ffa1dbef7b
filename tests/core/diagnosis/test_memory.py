"""What a drafter adds, in bytes, held against the buffers that a `DrafterContext` really has."""

from dataclasses import replace

import pytest
import torch

from dflash2_core.diagnosis.memory import kept_positions, keys_and_values, memory_of
from dflash2_core.drafter import DrafterContext
from tests.core.diagnosis.parts import drafter, target
from tests.core.toys import drafter_config, random_drafter

WINDOWS = {
    "all slide": (64, 64),
    "wider than it grows at first": (600, 600),
    "one sees all": (None, 64),
    "none slides": (None, None),
}


def filled(context: int, rows: int, windows: tuple[int | None, ...], dtype: torch.dtype) -> DrafterContext:
    """A context whose rows have `context` positions each, committed in one piece as a prompt is."""
    drafter = random_drafter(layer_windows=windows).to(dtype)
    buffers = DrafterContext(drafter, max_rows=rows)
    for _ in range(rows):
        buffers.join()
    taps = torch.zeros(rows, context, drafter.fc.weight.shape[1], dtype=dtype)
    buffers.append(taps, [context] * rows)
    return buffers


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_are_the_bytes_of_the_real_buffers(
    windows: tuple[int | None, ...], rows: int, dtype: torch.dtype
) -> None:
    context = 1500
    config = drafter_config(layer_windows=windows)
    positions = kept_positions(config, context)
    stated = keys_and_values(config, rows=rows, positions=positions, itemsize=dtype.itemsize)
    assert filled(context, rows, windows, dtype).num_bytes == stated


@pytest.mark.parametrize("context", [300, 513])
def test_a_context_that_still_grows_has_at_most_twice_the_positions_that_are_stated(context: int) -> None:
    config = drafter_config(layer_windows=(None, None))
    drafter = random_drafter(layer_windows=(None, None))
    buffers = DrafterContext(drafter)
    buffers.join()
    for _ in range(context):
        buffers.append(torch.zeros(1, 1, drafter.fc.weight.shape[1]), [1])
    least, most = (keys_and_values(config, rows=1, positions=n, itemsize=4) for n in (context, 2 * context))
    assert least <= buffers.num_bytes <= most


def test_by_the_window_and_not_by_the_context() -> None:
    config = drafter_config(layer_windows=(2048, 2048), max_position_embeddings=262144)
    assert kept_positions(config, 262144) == kept_positions(config, 4096) == 2047
    assert kept_positions(config, 1000) == 1000
    assert kept_positions(drafter_config(layer_windows=(None, 2048)), 4096) == 4096
    assert kept_positions(drafter_config(layer_windows=(2048, 2048), max_position_embeddings=500), 4096) == 500


def test_of_the_embedded_pair_at_a_stated_number_of_rows_and_positions() -> None:
    found = memory_of(drafter(), target(), rows=4, context=1024)
    assert found is not None
    assert (found.rows, found.context, found.positions, found.dtype) == (4, 1024, 95, "bf16")
    assert found.weights == 2_406_848 * 2
    assert found.keys_and_values == 2 * 2 * 4 * 2 * (95 + 8 + 1) * 64 * 2
    assert found.whole_context == 2 * 2 * 4 * 2 * (1024 + 8 + 1) * 64 * 2


def test_it_is_counted_in_what_the_target_is_in_and_a_gguf_as_it_is_stored() -> None:
    in_float32 = memory_of(drafter(), replace(target(), dtype="float32"))
    assert in_float32 is not None
    assert (in_float32.dtype, in_float32.weights, in_float32.context) == ("f32", 2_406_848 * 4, 2048)
    stored = memory_of(replace(drafter(), layout="gguf", num_bytes=123), replace(target(), dtype="q4_0"))
    assert stored is not None
    assert (stored.weights, stored.dtype) == (123, "f16")
    exported = memory_of(drafter(), replace(target(), layout="gguf", dtype="f32"))  # llama.cpp's, once it is exported
    assert exported is not None
    assert (exported.weights, exported.dtype) == (2_406_848 * 2, "f16")
    assert memory_of(replace(drafter(), config=None), target()) is None
