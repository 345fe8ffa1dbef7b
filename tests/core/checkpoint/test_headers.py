"""A safetensors file may hold anything: its header is checked against the file, and never crashes the reader."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from dflash2_core.checkpoint import open_checkpoint, tensor_shapes, write_checkpoint
from dflash2_core.checkpoint.header import read_header
from dflash2_core.errors import CheckpointError, Dflash2Error
from tests.core.toys import drafter_config

SOUND = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def file_of(tmp_path: Path, header: Any, data: bytes = b"\0" * 8) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": SOUND["a"] | changes}


def test_a_sound_header_is_read(tmp_path: Path) -> None:
    tensors, metadata = read_header(file_of(tmp_path, SOUND | {"__metadata__": {"format": "pt"}}))
    assert (tensors["a"].dtype, tensors["a"].shape, tensors["a"].begin, tensors["a"].end) == ("F32", (2,), 0, 8)
    assert metadata == {"format": "pt"}


UNSOUND: dict[str, Any] = {
    "nothing": b"",
    "no object": b"[]",
    "no JSON": b"{",
    "nested without end": b"[" * 100_000,
    "the same name twice": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "no text": b"\xff\xfe\xfd",
    "metadata of numbers": SOUND | {"__metadata__": {"format": 3}},
    "metadata that is a list": SOUND | {"__metadata__": []},
    "an entry that is none": {"a": 3},
    "an entry without a shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "an entry with more": entry(strides=[1]),
    "a dtype that is a number": entry(dtype=32),
    "a negative size": entry(shape=[-2]),
    "a huge size": entry(shape=[2**62, 2**62]),
    "a size that is no integer": entry(shape=[2.0]),
    "a size that is a flag": entry(shape=[True, 2]),
    "too many dimensions": entry(shape=[1] * 20 + [2]),
    "a shape that is a number": entry(shape=2),
    "offsets out of order": entry(data_offsets=[8, 0]),
    "offsets past the end": entry(data_offsets=[0, 16], shape=[4]),
    "offsets of another length": entry(data_offsets=[0, 4]),
    "one offset": entry(data_offsets=[0]),
    "a hole before": entry(data_offsets=[4, 8], shape=[1]),
    "a hole after": entry(data_offsets=[0, 4], shape=[1]),
    "an overlap": SOUND | {"b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
    "two in one place": SOUND | {"b": SOUND["a"]},
}


@pytest.mark.parametrize("what", UNSOUND)
def test_an_unsound_header_is_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        read_header(file_of(tmp_path, UNSOUND[what]))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    path = file_of(tmp_path, SOUND)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError):
        read_header(path)


@pytest.mark.parametrize("stated", [2**63 - 1, 2**64 - 1, 2**31, 10**9])
def test_a_header_longer_than_the_file_is_refused_without_memory(tmp_path: Path, stated: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(stated.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="states a header of"):
        read_header(path)


def test_a_header_of_a_gigabyte_is_refused_though_the_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)
    with pytest.raises(CheckpointError, match="states a header of"):
        read_header(path)


@pytest.fixture
def smallest(tmp_path: Path) -> Path:
    """A sound checkpoint of few tensors."""
    config = drafter_config(version=1, num_hidden_layers=1)
    write_checkpoint(config, {name: torch.ones(shape) for name, shape in tensor_shapes(config).items()}, tmp_path / "small")
    return tmp_path / "small"


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_give_a_checkpoint_or_a_sentence(smallest: Path, data: st.DataObject) -> None:
    """Truncated, overwritten, grown, spliced: nothing but a Dflash2Error, and nothing read from outside the file."""
    folder = smallest
    raw = bytearray((folder / "model.safetensors").read_bytes())
    header_end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_end - 1))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"0", b"9", b"-", b'"', b"}", b"e9"])))
        match data.draw(st.sampled_from(["overwrite", "insert", "remove", "cut"])):
            case "overwrite":
                raw[at : at + len(patch)] = patch
            case "insert":
                raw[at:at] = patch
            case "remove":
                del raw[at : at + len(patch)]
            case "cut":
                del raw[data.draw(st.integers(0, len(raw))) :]
        header_end = max(1, min(header_end, len(raw)))
    other = folder.parent / "damaged"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    (other / "model.safetensors").write_bytes(raw)
    with suppress(Dflash2Error):
        for _, tensor in open_checkpoint(other).tensors():
            tensor.sum()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats() | st.text(max_size=4) | st.just("F32"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__", "\x00", "model.a"]),
        json_values
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "BF16", "I8", "F4", "?"]) | json_values,
                "shape": st.lists(st.integers(0, 4), max_size=3) | json_values,
                "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2) | json_values,
            }
        ),
        max_size=4,
    ),
    data=st.binary(max_size=16),
)
def test_any_header_is_read_or_refused_in_a_sentence(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    with suppress(CheckpointError):
        read_header(file_of(tmp_path, header, data))


def test_what_is_accepted_the_formats_own_library_accepts_too(folder: Path) -> None:
    assert load_file(folder / "model.safetensors")["fc.weight"].dtype == torch.float32
