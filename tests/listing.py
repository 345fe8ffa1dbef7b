"""Tests named in a list: are they there?"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def missing(root: Path, listed: Iterable[str]) -> list[str]:
    """Those of "path::name", from `root` on, that are not there."""
    places = [(each, *each.split("::")) for each in listed]
    return [each for each, path, name in places if name not in _named_in(root / path)]


@cache
def _named_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
