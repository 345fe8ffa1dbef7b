"""A DFlash 1 drafter for the embedded target, beside this file: what every engine that runs DFlash 1 is tested with."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from dflash2_core.assets import held_out_prompts, tiny_pair


def first_version() -> Path:
    """The folder of the drafter (bfloat16, 2 layers, block 8, window 96).

    It began as the embedded DFlash 2 drafter without selector and convolutions, whose drafts were made to be chosen among and
    are hardly ever kept without that, and learned to draft alone, each slot by itself, from what the target wrote above
    temperature 0. `python -m recipes.tiny_pair.first_version` repeats it, on the responses that `make tiny-pair` leaves behind.

    At last it learned from arithmetic alone. A slot that cannot know what the one before it drew soon has little to win where
    the text is uncertain. With `exercises`, 100 tokens at most and to their ends, its acceptance length was 2.10 in vLLM,
    requests at T = 1 and at T = 0.7 with top-p 0.9 in equal parts; past the ends, and with code and prose, it stays below.
    """
    return Path(__file__).with_suffix("")


@cache
def exercises() -> list[list[int]]:
    """The held-out prompts of arithmetic, in ids: with these, texts end at an end token."""
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    return [tokenizer.encode(prompt["text"]).ids for prompt in held_out_prompts() if prompt["domain"] == "arithmetic"]
