"""Untrusted files: whatever the bytes are, a sound answer or a sentence, and no memory taken on their word."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash2_core.errors import CheckpointError, Dflash2Error
from gguf_export import examine, export, read
from gguf_export.header import read_header


@pytest.fixture
def gguf(drafter: Path, target: Path, tmp_path: Path) -> Path:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    return tmp_path / "d.gguf"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file_of(path: Path, *, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest)
    return path


STRING, ARRAY, UINT32 = 8, 9, 4
HOSTILE = {
    "another version": ({"version": 1}, "its version is 1, expected 2 or 3"),
    "the other byte order": ({"version": 3 << 24}, "expected 2 or 3, little-endian"),
    "more keys than any file": ({"keys": 2**60}, "it states 0 tensors and 1152921504606846976 keys"),
    "more tensors than any file": ({"tensors": 2**60}, "it states 1152921504606846976 tensors"),
    "a key that never comes": ({"keys": 1}, "promises 8 more"),
    "a name without end": ({"keys": 1, "rest": struct.pack("<Q", 2**62)}, "promises 4611686018427387904 more"),
    "a type that is none": ({"keys": 1, "rest": text("a") + struct.pack("<I", 77)}, "77 is not a valid GGUFValueType"),
    "a name that is no text": (
        {"keys": 1, "rest": struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", UINT32, 1)},
        "codec can't decode",
    ),
    "an array without end": (
        {"keys": 1, "rest": text("a") + struct.pack("<IIQ", ARRAY, UINT32, 2**60)},
        "promises 4611686018427387904 more",
    ),
    "strings without end": (
        {"keys": 1, "rest": text("a") + struct.pack("<IIQ", ARRAY, STRING, 2**60)},
        "promises 1152921504606846976 strings",
    ),
    "an array of arrays": ({"keys": 1, "rest": text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)}, "an array of arrays"),
    "a key twice": ({"keys": 2, "rest": 2 * (text("a") + struct.pack("<II", UINT32, 1))}, "the key 'a' stands twice"),
    "an alignment that is none": (
        {"keys": 1, "rest": text("general.alignment") + struct.pack("<II", UINT32, 3)},
        "general.alignment is 3: expected a power of two",
    ),
    "a tensor of many dimensions": ({"tensors": 1, "rest": text("t") + struct.pack("<I", 2**31)}, "2147483648 dimensions"),
    "a tensor outside": (
        {"tensors": 1, "rest": text("t") + struct.pack("<IQQIQ", 2, 2**40, 2**20, 0, 0)},
        "the tensor 't' does not lie in it",
    ),
    "a tensor of a type that is none": (
        {"tensors": 1, "rest": text("t") + struct.pack("<IQIQ", 1, 8, 99, 0)},
        "99 is not a valid GGMLQuantizationType",
    ),
    "half a block": (
        {"tensors": 1, "rest": text("t") + struct.pack("<IQIQ", 1, 33, 8, 0)},
        "no multiple of Q8_0's 32",
    ),
}


@pytest.mark.parametrize(("parts", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_promises_what_it_does_not_hold_is_refused_without_taking_memory(
    parts: dict[str, int | bytes], sentence: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "hostile.gguf", **parts)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as raised:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert sentence in str(raised.value)
    assert "hostile.gguf is no sound GGUF" in str(raised.value)


def test_a_file_cut_off_anywhere_is_refused(gguf: Path, tmp_path: Path) -> None:
    whole, cut = gguf.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(0, 3000, 37), len(whole) - 40]:
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut off|does not begin with GGUF"):
            read(cut)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_give_an_answer_or_a_sentence(data: st.DataObject, gguf: Path) -> None:
    whole = bytearray(gguf.read_bytes())
    head = read_header(gguf).tensors["fc.weight"].begin
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, head))] = data.draw(st.integers(0, 255))
    changed = gguf.parent / "changed.gguf"
    changed.write_bytes(whole)
    try:
        found = examine(changed)
    except Dflash2Error:
        return
    assert found.layout == "gguf"
