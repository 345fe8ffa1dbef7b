"""An engine's command line, as the user gave it behind `--`, read as far as drafting is concerned."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2_core.config.reading import shown
from dflash2_core.errors import EngineError

VLLM_CONFIG = ("--speculative-config", "-sc")
VLLM_SHORT = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Option -> its value, "" for a flag; `--a=b` and `--a b` alike, `_` in names as `-`; the last one counts."""
    found: dict[str, str] = {}
    name = None
    for argument in arguments:
        if argument.startswith("-") and not _is_number(argument):
            option, given, value = argument.partition("=")
            name = option.replace("_", "-") if "." not in option else option
            found[name] = value
            name = None if given else name
        elif name is not None:
            found[name], name = argument, None
    return found


def vllm_speculation(options: Mapping[str, str]) -> dict[str, Any] | None:
    """All that vLLM's options say of speculation, under its own names; None: nothing. EngineError for what is no JSON."""
    found: dict[str, Any] = {}
    asked = False
    for name, value in options.items():
        head, dotted, key = name.partition(".")
        if head.replace("_", "-") in VLLM_CONFIG:
            found |= {key.replace("-", "_"): _plain(value)} if dotted else _object(name, value)
        elif name in VLLM_SHORT:
            found[VLLM_SHORT[name]] = _plain(value)
        else:
            continue
        asked = True
    return {key.replace("-", "_"): value for key, value in found.items()} if asked else None


def number(options: Mapping[str, str], *names: str) -> float | None:
    """The value of the first of these options that is there; EngineError where it is no number."""
    for name in names:
        if name in options:
            if not _is_number(options[name]):
                raise EngineError(f"{name} is followed by {options[name]!r}: expected a number")
            return float(options[name])
    return None


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise EngineError(f"{name} is followed by {shown(text)}: expected a JSON object, in quotes") from None
    if not isinstance(found, dict):
        raise EngineError(f"{name} is followed by {shown(text)}: expected a JSON object")
    return found


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except (ValueError, RecursionError):
        return False
    return True
