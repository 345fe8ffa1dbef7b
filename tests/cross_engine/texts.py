"""The prompts of the table, what the core writes for them, and how many drafts each cycle of any engine has to keep.

A budget ends each text where a block ends: no engine has then to say whether drafts behind the end count.
"""

from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.drafter import Drafter
from tests.engines.pair import drafting

PER_DOMAIN = {"code": 24, "docs": 24, "arithmetic": 6}
TRIED = 34
NEW_TOKENS, NUM_DRAFTS = 96, 7
"""Tokens of a text, at least: it goes on to the end of the block that reaches them."""


@dataclass(frozen=True)
class Text:
    """ids: what the target alone writes, in float32. kept: of each cycle, how many drafts are the text itself."""

    prompt: list[int]
    ids: list[int]
    kept: list[int]

    @property
    def params(self) -> SamplingParams:
        """Greedy, to the last block's end."""
        return SamplingParams(max_new_tokens=len(self.ids))


@cache
def texts() -> list[Text]:
    """Of each domain the first prompts whose texts go on for long enough."""
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    engine = TransformersEngine.from_pretrained(tiny_pair().target, dtype="float32", max_batch_size=16)
    asked = SamplingParams(max_new_tokens=NEW_TOKENS + NUM_DRAFTS)
    found = []
    for domain, count in PER_DOMAIN.items():
        prompts = [tokenizer.encode(each["text"]).ids for each in held_out_prompts() if each["domain"] == domain][:TRIED]
        written = zip(prompts, engine.generate(prompts, asked), strict=True)
        long = [(prompt, each.token_ids) for prompt, each in written if each.finish_reason == "length"]
        found += [_ended(prompt, ids) for prompt, ids in long[:count]]
    return found


def _ended(prompt: list[int], ids: list[int]) -> Text:
    kept = kept_drafts(prompt, ids)
    whole = sum(kept) + len(kept) + 1
    return Text(prompt, ids[:whole], kept)


def kept_drafts(prompt: list[int], ids: list[int], *, of: Drafter | None = None, shortened: bool = False) -> list[int]:
    """Of each cycle, until `NEW_TOKENS` are written: how many drafts are what the text goes on with.

    The first token is the target's own, before there is a draft.
    of         None for the embedded drafter
    shortened  as the Transformers engine does: no block reaches over the budget, which is all of `ids`. A shorter block is
               another block, since its rows see each other.
    """
    text = [*prompt, *ids]
    drafts_at, kept, anchor = drafting(text, of=of), list[int](), len(prompt)
    while anchor + 1 - len(prompt) < (len(ids) if shortened else NEW_TOKENS):
        left = min(NUM_DRAFTS, len(text) - anchor - 2) if shortened else NUM_DRAFTS
        pairs = list(zip(drafts_at(anchor, left), text[anchor + 1 :], strict=False)) if left else []
        kept.append(next((i for i, (draft, written) in enumerate(pairs) if draft != written), len(pairs)))
        anchor += kept[-1] + 1
    return kept


def kept_by_position(cycles: list[int]) -> list[int]:
    """How often the draft of each place stood, as `AcceptanceStats.accepted_per_position`."""
    return [sum(kept > place for kept in cycles) for place in range(NUM_DRAFTS)]
