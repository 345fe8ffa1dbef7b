"""One request: what was asked, what is committed, and where it ends."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.sampling import SamplingParams
from dflash2_core.sampling.processing import judged_dtype
from dflash2_core.transformers_engine.detokenizer import Detokenizer


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """How likely the target alone found a token, before any option of the request: natural logarithms.

    token_id, logprob  of the token that was committed
    top                the most likely ids with theirs, best first, as many as were asked; the lower of tied ids first
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a request came to.

    token_ids          every committed id, the one that ended the text included
    text               without special tokens, and without the stop string
    finish_reason      "stop" (end of sequence, stop id, stop string) or "length" (budget, context limit)
    stats              how drafting went
    num_prompt_tokens  ids of the prompt
    logprobs           one entry a token, or None if they were not asked for
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    stats: AcceptanceStats
    num_prompt_tokens: int
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a stream: new ids, new text; the last one carries the whole Completion."""

    token_ids: list[int]
    text: str
    completion: Completion | None = None


@dataclass(eq=False)
class Request:
    """prompt [T] ids and params; `budget` is how many tokens may still be written, the context limit included.

    sample  which of the `params.n` completions of its prompt it is
    error   why it ended without a completion
    """

    prompt: list[int]
    params: SamplingParams
    budget: int
    eos_token_ids: Collection[int]
    tokenizer: PreTrainedTokenizerBase | None
    sample: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None
    stats: AcceptanceStats = field(default_factory=AcceptanceStats)

    def __post_init__(self) -> None:
        ends = () if self.params.ignore_eos else self.eos_token_ids
        self.stop_ids = frozenset(ends) | frozenset(self.params.stop_token_ids) | self._special_stops()
        self.detokenizer = Detokenizer(self.tokenizer, self.params.stop)
        self.seed = (secrets.randbits(63) if self.params.seed is None else self.params.seed) + self.sample

    @property
    def remaining(self) -> int:
        """Tokens that may still be written."""
        return self.budget - len(self.output)

    @property
    def num_tokens(self) -> int:
        """Committed tokens, the prompt's included; the last one's key and value are in no cache yet."""
        return len(self.prompt) + len(self.output)

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def commit(self, ids: Sequence[int]) -> list[int]:
        """Append what the target wrote, up to the first id that ends the text. Returns the ids that were kept.

        An end inside the budget is a "stop", also on its very last token.
        """
        kept = []
        for token in ids:
            kept.append(token)
            self.output.append(token)
            stopped = self.detokenizer.push(token)
            if token in self.stop_ids or stopped:
                self.finish_reason = "stop"
            elif self.remaining <= 0:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        return kept

    def note_logprobs(self, logits: Tensor) -> None:
        """logits [n, V], the target's own for the n ids committed last."""
        count = min(self.params.logprobs or 0, logits.shape[-1])
        logprobs = logits.to(judged_dtype(logits.dtype)).log_softmax(-1)
        ids = torch.tensor(self.output[-len(logits) :], device=logits.device)
        chosen = logprobs.gather(1, ids[:, None])[:, 0].tolist()
        # Stable, so that the lower of tied ids comes first; topk alone leaves that open.
        order = logprobs.argsort(dim=-1, descending=True, stable=True)[:, :count]
        for token, logprob, best, theirs in zip(
            ids.tolist(), chosen, order.tolist(), logprobs.gather(1, order).tolist(), strict=True
        ):
            top = list(zip(best, theirs, strict=True))
            self.logprobs.append(TokenLogprob(token_id=token, logprob=logprob, top=top))

    def _special_stops(self) -> frozenset[int]:
        """Stop strings that are special tokens: those leave no text in which they could be found."""
        special = set(self.params.stop) & special_tokens(self.tokenizer)
        return frozenset(self.tokenizer.convert_tokens_to_ids(sorted(special))) if self.tokenizer and special else frozenset()

    def chunk(self, kept: list[int]) -> Chunk:
        """The piece of stream that these newly committed ids make."""
        if self.finish_reason is None:
            return Chunk(token_ids=kept, text=self.detokenizer.delta())
        rest = self.detokenizer.finish()
        completion = Completion(
            token_ids=list(self.output),
            text=self.detokenizer.text,
            finish_reason=self.finish_reason,
            stats=self.stats,
            num_prompt_tokens=len(self.prompt),
            logprobs=self.logprobs if self.params.logprobs is not None else None,
        )
        return Chunk(token_ids=kept, text=rest, completion=completion)


def special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> set[str]:
    """All that decoding leaves out, those that no configuration names included."""
    if tokenizer is None:
        return set()
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
