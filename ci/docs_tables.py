"""Docstrings as their authors lined them up: names with their meanings, in columns, stay columns in the reference.

An extension of griffe, named in mkdocs.yml.
"""

import re
from itertools import groupby
from typing import Any

import griffe

COLUMNS = re.compile(r"\S.*?\s{2,}\S")
"""A name, a gap, its meaning."""


class Tables(griffe.Extension):
    """Called by mkdocstrings for every object that it reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of all kinds: modules, classes, functions and attributes."""
        if obj.docstring is not None:
            obj.docstring.value = with_columns(obj.docstring.value)


def with_columns(docstring: str) -> str:
    """Markdown in which lines of columns, and lines that go on from them, are blocks of code."""
    parts = []
    for prose, lines in groupby(docstring.splitlines(), key=_is_prose):
        indent = "" if prose else "    "
        parts.append("\n".join(indent + line for line in lines))
    return "\n\n".join(parts)


def _is_prose(line: str) -> bool:
    return not (line.startswith(" ") or COLUMNS.match(line))
