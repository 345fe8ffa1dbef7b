"""An export needs the memory of a tensor, not of the model."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash2_core.checkpoint import tensor_shapes, write_checkpoint
from tests.gguf.toys import toy_config, write_target

WIDTH, LAYERS = 512, 12
PROGRAM = """
import sys
from pathlib import Path
import gguf_export.exporting as exporting

def peak():
    # not ru_maxrss, which a process inherits from the one that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

drafter, target, out, outtype, keeping = sys.argv[1:]
kept = []
if keeping == "all":
    convert = exporting.converted
    exporting.converted = lambda *arguments: kept.append(convert(*arguments)) or kept[-1]
small = out + ".small"
exporting.export(drafter + "-small", small, tokenizer_from=target, outtype=outtype)  # what the libraries need once
before = peak()
exporting.export(drafter, out, tokenizer_from=target, outtype=outtype)
print(peak() - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of 120 MB in bfloat16, whose largest tensor has 2 MB, and one of the same kind with one layer."""
    folder = tmp_path_factory.mktemp("memory")
    for name, layers in {"drafter": LAYERS, "drafter-small": 1}.items():
        config = toy_config(
            hidden_size=WIDTH,
            target_hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=64,
            num_hidden_layers=layers,
        )
        generator = torch.Generator().manual_seed(0)
        weights = {
            tensor: torch.randn(shape, generator=generator).bfloat16() for tensor, shape in tensor_shapes(config).items()
        }
        write_checkpoint(config, weights, folder / name)
    write_target(folder / "target.gguf", embedding_length=WIDTH)
    return folder


def growth(folder: Path, outtype: str, *, keeping: str = "nothing") -> tuple[int, int]:
    """By how much the export's memory grew, and the size of the file."""
    out = folder / f"{outtype}.gguf"
    command = [sys.executable, "-c", PROGRAM, folder / "drafter", folder / "target.gguf", out, outtype, keeping]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), out.stat().st_size


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_memory_does_not_grow_with_the_model(outtype: str, folder: Path) -> None:
    grown, size = growth(folder, outtype)
    assert size > 50 * 2**20
    assert grown < 24 * 2**20, f"{grown:,} bytes for a file of {size:,}"


def test_keeping_every_tensor_would_be_seen(folder: Path) -> None:
    grown, size = growth(folder, "f32", keeping="all")
    assert grown > size / 2
