"""Typed reading of a config's mapping: what is missing, contradictory, mistyped or left unread is named, all of it."""

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dflash2_core.errors import ConfigError

T = TypeVar("T")
Parse = Callable[[object], T]
"""object -> value; a ValueError says what was found instead."""
LONGEST_NAME = 200


class InvalidConfigError(ConfigError):
    """A ConfigError that carries each problem as a sentence of its own."""

    def __init__(self, problems: Sequence[str], *, where: str = "the drafter's config") -> None:
        self.problems = tuple(problems)
        head = f"{where}: " if len(problems) == 1 else f"{len(problems)} problems in {where}:\n- "
        super().__init__(head + "\n- ".join(problems))


def shown(value: object) -> str:
    """A short repr of anything: integers of a million digits and nested garbage included."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def named(name: str) -> str:
    """A foreign name for a sentence: as it stands where a terminal can show it and it is short, else as `shown` has it."""
    return name if name.isprintable() and len(name) < LONGEST_NAME else shown(name)


def placed(path: str | Path) -> str:
    """A path for a sentence, in full; what a terminal cannot show is escaped."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _expected(what: str, value: object) -> ValueError:
    return ValueError(f"expected {what}, found {shown(value)}")


def integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _expected("an integer", value)
    return value


def natural(value: object) -> int:
    if integer(value) < 0:
        raise _expected("an integer from 0", value)
    return integer(value)


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _expected("a number", value)
    try:
        converted = float(value)
    except OverflowError:
        raise _expected("a number that fits a float", value) from None
    if not math.isfinite(converted):
        raise _expected("a finite number", value)
    return converted


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def string(value: object) -> str:
    if not isinstance(value, str):
        raise _expected("a string", value)
    return value


def mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _expected("an object", value)
    return value


def integers(value: object) -> tuple[int, ...]:
    return tuple(integer(item) for item in _items(value, "a list of integers"))


def strings(value: object) -> tuple[str, ...]:
    return tuple(string(item) for item in _items(value, "a list of strings"))


def integer_or_integers(value: object) -> tuple[int, ...]:
    return integers(value) if isinstance(value, list | tuple) else (integer(value),)


def _items(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise _expected(what, value)
    return value


class Reader:
    """Reads a nested mapping by dotted paths and remembers which keys were asked for.

    A null counts as absent, as it does in every stack that writes these files.
    Problems are collected in `problems`, so that one look at a config shows all of them.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._sections: dict[str, Mapping[str, Any]] = {"": root}
        self._asked: set[str] = set()

    def section(self, path: str) -> bool:
        """Open the object at `path`; False when there is none."""
        found = self.value(mapping, path)
        if found is not None:
            self.open(path, found)
        return found is not None

    def open(self, path: str, keys: Mapping[str, Any]) -> None:
        """Let `path` stand for the object `keys`."""
        self._sections[f"{path}."] = keys

    def raw(self, path: str) -> object:
        """The value at `path` as it stands, None when absent; counts as asked for."""
        self._asked.add(path)
        prefix, _, key = path.rpartition(".")
        return self._sections.get(f"{prefix}." if prefix else "", {}).get(key)

    def value(self, parse: Parse[T], *paths: str) -> T | None:
        """The one value stated at any of `paths`; two places that disagree are a problem that names both."""
        stated: list[tuple[str, T]] = []
        for path in paths:
            found = self.raw(path)
            if found is None:
                continue
            try:
                stated.append((path, parse(found)))
            except ValueError as error:
                self.problems.append(f"{path}: {error}")
        for path, other in stated[1:]:
            if other != stated[0][1]:
                self.problems.append(
                    f"{stated[0][0]} is {shown(stated[0][1])} but {path} is {shown(other)}: they state the same thing, "
                    "so remove one of them or make them equal"
                )
        return stated[0][1] if stated else None

    def need(self, parse: Parse[T], *paths: str) -> T | None:
        """`value`, and a problem when none of the paths holds one; None then too."""
        found = self.value(parse, *paths)
        if all(self.raw(path) is None for path in paths):
            self.problems.append(f"{' or '.join(paths)} is missing, and nothing stands in for it")
        return found

    def unread(self) -> Iterator[str]:
        """Paths that hold something and were never asked for."""
        for prefix in self._sections:
            yield from self.unread_of(prefix[:-1])

    def unread_of(self, path: str) -> Iterator[str]:
        """The unread paths of one section, "" for the root."""
        prefix = f"{path}." if path else ""
        for key, value in self._sections[prefix].items():
            if value is not None and f"{prefix}{key}" not in self._asked:
                yield f"{prefix}{key}"
