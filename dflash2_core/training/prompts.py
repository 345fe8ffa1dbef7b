"""Prompts from a file, as token ids."""

import json
from collections.abc import Iterator
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
    except (OSError, ValueError) as error:
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
    if path.suffix == ".json":
        yield from json.loads(text)
    elif path.suffix == ".jsonl":
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    else:
        yield from ({"text": line} for line in text.splitlines())


def _token_ids(entry: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    if "token_ids" in entry:
        return [int(token) for token in entry["token_ids"]]
    if tokenizer is None:
        raise ValueError("only token_ids can be used, since the target has no tokenizer")
    if "messages" in entry:
        text = tokenizer.apply_chat_template(entry["messages"], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if "text" in entry:
        return list(tokenizer(entry["text"])["input_ids"])
    raise ValueError("expected one of the keys text, messages, token_ids")
