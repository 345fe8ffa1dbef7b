"""Prompts from a file, as token ids."""

import json
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dflash2_core.errors import Dflash2Error


def read_prompts(path: str | Path, tokenizer: PreTrainedTokenizerBase | None) -> list[list[int]]:
    """Prompts as token ids, empty ones left out.

    .jsonl or .json (a list)  objects with `text`, `messages` (put through the chat template) or `token_ids`
    any other                 one prompt a line
    Raises Dflash2Error naming the file and the entry that is none of these.
    """
    path = Path(path)
    try:
        entries = list(_entries(path))
    except (OSError, ValueError, RecursionError) as error:
        raise Dflash2Error(f"the prompts in {path} could not be read: {error}") from error
    prompts = []
    for number, entry in enumerate(entries, start=1):
        try:
            prompts.append(_token_ids(entry, tokenizer))
        except (TypeError, ValueError, KeyError) as error:
            raise Dflash2Error(f"{path}, entry {number}: {error}") from error
    if not (kept := [prompt for prompt in prompts if prompt]):
        raise Dflash2Error(f"{path} holds no prompts")
    return kept


def _entries(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")  # `splitlines` would also cut at characters that JSON strings may hold
    if path.suffix == ".json":
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError(f"expected a list, found {type(entries).__name__}")
        yield from entries
    elif path.suffix == ".jsonl":
        yield from (json.loads(line) for line in lines if line.strip())
    else:
        yield from ({"text": line.removesuffix("\r")} for line in lines)


def _token_ids(entry: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r:.80}")
    if "token_ids" in entry:
        if not isinstance(entry["token_ids"], list) or any(isinstance(token, bool) for token in entry["token_ids"]):
            raise ValueError("token_ids is not a list of integers")
        return [index(token) for token in entry["token_ids"]]
    if tokenizer is None:
        raise ValueError("only token_ids can be used, since the target has no tokenizer")
    if "messages" in entry:
        try:
            text = tokenizer.apply_chat_template(entry["messages"], tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of its own, and raises what it likes
            raise ValueError(f"the target's chat template refuses it: {error}") from error
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if "text" in entry:
        if not isinstance(entry["text"], str):
            raise ValueError("text is not a string")
        return list(tokenizer(entry["text"])["input_ids"])
    raise ValueError("expected one of the keys text, messages, token_ids")
