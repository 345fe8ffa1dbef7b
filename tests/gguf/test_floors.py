"""The exporter knows the core below the command line, and nothing else of this project."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "gguf_export").rglob("*.py"))
THIRD_PARTIES = {"gguf", "numpy", "safetensors", "torch"}
ABOVE = {"cli", "conformance", "training", "transformers_engine"}


def imports_of(source: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_exporter_imports_the_core_and_what_the_extra_brings(source: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(source)} - set(sys.stdlib_module_names)
    assert roots <= THIRD_PARTIES | {"dflash2_core", "gguf_export"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_exporter_knows_nothing_above_the_drafter(source: Path) -> None:
    parts = {name.split(".")[1] for name in imports_of(source) if name.startswith("dflash2_core.")}
    assert not parts & ABOVE


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 10
