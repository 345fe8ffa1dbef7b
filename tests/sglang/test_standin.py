"""The stand-in for `sgl_kernel`: what its operations do, and that it never hides a real one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dflash2_sglang.cpu import standin


@pytest.fixture
def kernels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("standin_under_test", standin.FOLDER / "sgl_kernel" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_assigned_to_a_requests_row_is_read_back(kernels: ModuleType) -> None:
    table = torch.zeros(5, 12, dtype=torch.int32)
    rows, start, end = torch.tensor([3, 1]), torch.tensor([2, 0]), torch.tensor([5, 4])
    slots = torch.tensor([70, 71, 72, 80, 81, 82, 83])
    kernels.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 12)
    assert table[3].tolist() == [0, 0, 70, 71, 72] + [0] * 7
    assert table[1].tolist() == [80, 81, 82, 83] + [0] * 8
    read = torch.empty(7, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, start, end, read, 12)
    assert read.tolist() == slots.tolist()


def test_slots_move_in_every_buffer_at_once(kernels: ModuleType) -> None:
    buffers = [torch.arange(24.0).view(6, 4), torch.arange(12, dtype=torch.int16).view(6, 2)]
    expected = [buffer.clone() for buffer in buffers]
    targets, sources = torch.tensor([1, 2, 5]), torch.tensor([2, 1, 0])  # two of them change places
    for buffer in expected:
        buffer[targets] = buffer[sources]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    sizes = torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers])
    kernels.copy_all_layer_kv_cache_cpu(addresses, sizes, targets, sources)
    assert all(torch.equal(a, b) for a, b in zip(buffers, expected, strict=True))


def test_what_is_not_there_says_so(kernels: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"verify_tree_greedy_cpu is not in dflash2's stand-in"):
        kernels.verify_tree_greedy_cpu(1, 2)


def test_a_real_sgl_kernel_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "sgl_kernel"
    real.mkdir()
    (real / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = list(sys.path)
    assert standin.provide_sgl_kernel() == "installed"
    assert sys.path == before


def test_without_one_the_stand_in_is_the_last_place_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(standin.FOLDER)])
    assert standin.provide_sgl_kernel() == "stand-in"
    assert sys.path[-1] == str(standin.FOLDER)
