"""What the tests of every engine compare with: the embedded pair's prompts, and what the core makes of them in float32.

Run in the core's environment; an engine gets and gives ids.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from tokenizers import Tokenizer

from dflash2_core import Completion, SamplingParams, TransformersEngine, load_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.drafter import Drafter
from dflash2_core.transformers_engine.target import Target

PER_DOMAIN = 10
NEW_TOKENS = 64
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS)


@cache
def thirty_prompts() -> list[list[int]]:
    """Code, docs and arithmetic, which the pair was not trained on, in ids."""
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    found = []
    for domain in ("code", "docs", "arithmetic"):
        texts = [prompt["text"] for prompt in held_out_prompts() if prompt["domain"] == domain]
        found += [tokenizer.encode(text).ids for text in texts[:PER_DOMAIN]]
    return found


@cache
def written_plainly() -> list[Completion]:
    """What the core writes for them with the target alone, greedily."""
    engine = TransformersEngine.from_pretrained(tiny_pair().target, dtype="float32", max_batch_size=PER_DOMAIN)
    return engine.generate(thirty_prompts(), GREEDY)


@cache
def written_with_drafts() -> list[Completion]:
    """The same with the drafter; `stats` count what was drafted and accepted."""
    pair = tiny_pair()
    engine = TransformersEngine.from_pretrained(pair.target, pair.drafter, dtype="float32", max_batch_size=PER_DOMAIN)
    return engine.generate(thirty_prompts(), GREEDY)


@cache
def target() -> Target:
    return Target.from_pretrained(tiny_pair().target, dtype="float32")


@cache
def drafter() -> Drafter:
    return load_drafter(tiny_pair().drafter, dtype=torch.float32)


def drafts_at(text: Sequence[int], anchors: Sequence[int], *, of: Drafter | None = None) -> list[list[int]]:
    """The core's greedy block of drafts at each anchor of a text.

    text     prompt and output, in ids
    anchors  positions in it, ascending, none 0: the anchor itself is text[position]
    of       None: the embedded pair's drafter
    """
    at = drafting(text, of=of)
    return [at(anchor, None) for anchor in anchors]


@torch.inference_mode()
def drafting(text: Sequence[int], *, of: Drafter | None = None) -> Callable[[int, int | None], list[int]]:
    """(anchor, number of drafts or None for a full block) -> `drafts_at`, one anchor after the other."""
    of = of or drafter()
    _, taps = target().forward(torch.tensor([list(text)]), target().new_cache(), rows=1, taps=of.config.target_layer_ids)
    assert taps is not None
    context, before = of.new_context(), 0
    context.join()

    @torch.inference_mode()
    def at(anchor: int, length: int | None = None) -> list[int]:
        nonlocal before
        context.append(taps[:, before:anchor], [anchor - before])
        before = anchor
        proposal = of.propose(
            context,
            torch.tensor([text[anchor]]),
            [of.config.num_drafts if length is None else length],
            embed=target().embed,
            head=target().head,
            temperature=torch.zeros(1),
            streams=None,
        )
        return list(proposal.tokens[0].tolist())

    return at
