"""Constraints on a request's text.

Their logits processor is called for every judged row of a block, and a rejected draft may take the history back: what it does
must follow from the history that it is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.sampling.params import Constraint, LogitsProcessor


@dataclass(frozen=True)
class AfterToken:
    """A constraint that begins after the first `token_id` of the text: after the end of thinking. Before it all is allowed."""

    token_id: int
    constraint: Constraint

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        begun: dict[tuple[int, ...], LogitsProcessor] = {}  # by the thoughts: rejected drafts may have held the token too

        def process(history: Tensor, logits: Tensor) -> Tensor:
            text = history[len(prompt) :].tolist()
            if self.token_id not in text:
                return logits
            thoughts = tuple(text[: text.index(self.token_id) + 1])
            if thoughts not in begun:
                begun[thoughts] = self.constraint.begin([*prompt, *thoughts])
            return begun[thoughts](history, logits)

        return process


@dataclass(frozen=True)
class Grammar:
    """A grammar compiled by `xgrammar` (the extra of that name): `xgrammar.GrammarCompiler(...).compile_json_schema(...)`.

    compiled  an `xgrammar.CompiledGrammar`, made for the target's tokenizer
    """

    compiled: object

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        try:
            import xgrammar
        except ModuleNotFoundError as error:
            raise SamplingError("a grammar needs the xgrammar extra: pip install 'dflash2[xgrammar]'") from error
        matcher = xgrammar.GrammarMatcher(self.compiled, terminate_without_stop_token=False)
        accepted: list[int] = []

        def follow(text: list[int]) -> None:
            """Bring the matcher from what it accepted to `text`, back over what was rejected and forth over what is new."""
            common = next(
                (i for i, (a, b) in enumerate(zip(accepted, text, strict=False)) if a != b), min(len(accepted), len(text))
            )
            if common < len(accepted):
                matcher.rollback(len(accepted) - common)
                del accepted[common:]
            for token in text[common:]:
                if not matcher.accept_token(token):
                    raise SamplingError(f"the grammar does not allow the id {token} that was committed")
                accepted.append(token)

        def process(history: Tensor, logits: Tensor) -> Tensor:
            follow(history[len(prompt) :].tolist())
            if matcher.is_terminated():  # the text went on past its end: nothing may follow
                return logits.fill_(-torch.inf)
            bitmask = xgrammar.allocate_token_bitmask(1, len(logits))
            matcher.fill_next_token_bitmask(bitmask)
            xgrammar.apply_token_bitmask_inplace(logits[None], bitmask.to(logits.device))
            return logits

        return process
