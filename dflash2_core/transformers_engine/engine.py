"""The decode loop: draft, verify, commit. One request at a time."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.compatibility import TargetFacts, require_fit
from dflash2_core.drafter import Drafter, DrafterContext, load_drafter
from dflash2_core.errors import CompatibilityError, Dflash2Error, SamplingError
from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling import (
    BROKEN,
    RandomStreams,
    SamplingParams,
    processed_logits,
    target_distribution,
    verify_greedy,
    verify_sampled,
)
from dflash2_core.transformers_engine.cache import RollbackCache
from dflash2_core.transformers_engine.requests import Chunk, Completion, Request
from dflash2_core.transformers_engine.target import Target

Prompt = str | Sequence[int]

NOT_FINITE = "drafter output not finite"


class LowAcceptanceWarning(UserWarning):
    """The drafter runs, but the target hardly ever takes what it drafts."""


class TransformersEngine:
    """Speculative decoding of a Hugging Face target with a DFlash drafter; the output is what the target alone would write.

    target       the model whose text it is
    drafter      None: plain decoding through the same loop
    block_size   rows of a block, anchor included: 2 .. the checkpoint's; None is the checkpoint's, 1 turns drafting off
    """

    ACCEPTANCE_FLOOR = 1.2
    """Tokens per cycle under which drafting costs more than it brings."""
    CYCLES_BEFORE_WARNING = 64

    def __init__(self, target: Target, drafter: Drafter | None = None, *, block_size: int | None = None) -> None:
        self.target = target
        self.drafter = drafter
        self.num_drafts = _drafts_per_cycle(drafter, block_size)
        self._acceptance = AcceptanceStats()
        self._warned = False
        if drafter is not None:
            own = {name for name, _ in drafter.named_parameters()}
            require_fit(drafter.config, _facts(target), own=own)
        self._taps = drafter.config.target_layer_ids if drafter is not None and self.num_drafts else ()

    @classmethod
    def from_pretrained(
        cls,
        target: str | Path,
        drafter: str | Path | None = None,
        *,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_batch_size: int = 1,
        block_size: int | None = None,
    ) -> "TransformersEngine":
        """Load both from local folders.

        dtype   "auto": float32 on a CPU, the checkpoint's on CUDA
        device  "auto": CUDA if there is one
        Raises CheckpointError, ConfigError, CompatibilityError.
        """
        if max_batch_size != 1:
            raise CompatibilityError(f"max_batch_size is {max_batch_size}; this engine decodes one request at a time: use 1")
        model = Target.from_pretrained(target, dtype=dtype, device=device)
        if drafter is None:
            return cls(model, block_size=block_size)
        return cls(model, load_drafter(drafter, dtype=model.dtype, device=model.device), block_size=block_size)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete each prompt.

        prompts  a string or ids, one or many
        params   one for all, or one each; None: greedy, 256 tokens
        Raises SamplingError for a request that cannot be honoured, before any token is made.
        """
        requests = self._requests(prompts, params)
        return [self._complete(request) for request in requests]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Complete one prompt, cycle by cycle. The last chunk carries the Completion. Errors as for `generate`, at once."""
        (request,) = self._requests([prompt], params)
        return self._run(request)

    def _complete(self, request: Request) -> Completion:
        for chunk in self._run(request):
            if chunk.completion is not None:
                return chunk.completion
        raise AssertionError("a request ended without a completion")

    def _run(self, request: Request) -> Iterator[Chunk]:
        cache = self.target.new_cache()
        context = self._new_context()
        verdict = self._prefill(request, cache, context)
        chunk = request.chunk(request.commit([_next_token(verdict)]))
        while request.finish_reason is None:
            yield chunk
            chunk = request.chunk(self._cycle(request, cache, context))
        self._warn_of_low_acceptance(request.stats)
        yield chunk

    @torch.inference_mode()
    def _prefill(self, request: Request, cache: RollbackCache, context: DrafterContext | None) -> Verdict:
        ids = torch.tensor([request.prompt], device=self.target.device)
        logits, taps = self.target.forward(ids, cache, rows=1, taps=self._taps)
        if context is not None and taps is not None:
            context.append(taps, [len(request.prompt)])
        return self._verify(request, _no_drafts(ids), logits)

    @torch.inference_mode()
    def _cycle(self, request: Request, cache: RollbackCache, context: DrafterContext | None) -> list[int]:
        anchor = torch.tensor([request.anchor], device=self.target.device)
        position = cache.length
        proposal, skip_reason = self._propose(request, context, anchor)
        block = torch.cat((anchor[:, None], proposal.tokens), dim=1)
        logits, taps = self.target.forward(block, cache, rows=block.shape[1], taps=self._taps)
        verdict = self._verify(request, proposal, logits)
        drafts, drafted, n, token = _to_host(proposal, verdict)
        kept = request.commit(drafts[:n])
        if request.finish_reason is None:
            kept += request.commit([_checked(token)])
        if drafted:
            request.stats.record(drafted, n, len(kept))
        else:
            request.stats.skip(skip_reason or NOT_FINITE)
        if request.finish_reason is None:
            cache.rollback(position + len(kept))
            if context is not None and taps is not None:
                context.append(taps, [len(kept)])
        return kept

    def _propose(self, request: Request, context: DrafterContext | None, anchor: Tensor) -> tuple[Proposal, str | None]:
        """The drafts of one cycle, and the reason if none were asked for."""
        asked, reason = self._drafts_to_ask(request)
        if not asked or context is None or self.drafter is None:
            return _no_drafts(anchor), reason
        if not context.healthy[0]:
            return _no_drafts(anchor), NOT_FINITE
        greedy = request.params.is_greedy
        proposal = self.drafter.propose(
            context,
            anchor,
            [asked],
            embed=self.target.embed,
            head=self.target.head,
            temperature=torch.tensor([0.0 if greedy else request.params.temperature], device=anchor.device),
            streams=None if greedy else RandomStreams(request.seed),
        )
        return proposal, None

    def _drafts_to_ask(self, request: Request) -> tuple[int, str | None]:
        if self.drafter is None:
            return 0, "no drafter"
        if self.num_drafts == 0:
            return 0, "block size 1"
        last_position = self.drafter.config.max_position_embeddings - 1
        room = last_position - (len(request.prompt) + len(request.output) - 1)
        if room <= 0:
            return 0, "past the drafter's context limit"
        return min(self.num_drafts, request.remaining - 1, room), "last token of the budget"

    def _verify(self, request: Request, proposal: Proposal, logits: Tensor) -> Verdict:
        params = request.params
        if params.is_greedy and not params.rewrites_logits:
            return verify_greedy(proposal, logits)
        history: dict[str, Any] = {
            "prompts": [request.prompt],
            "outputs": [request.output],
            "drafts": proposal.tokens,
            "lengths": _drafts_before_an_end(proposal, request.stop_ids),
        }
        if params.is_greedy:
            return verify_greedy(proposal, processed_logits(logits, [params], **history))
        p = target_distribution(logits, [params], **history)
        anchor_position = torch.tensor([len(request.prompt) + len(request.output) - 1])
        return verify_sampled(proposal, p, RandomStreams(request.seed), anchor_position)

    def _new_context(self) -> DrafterContext | None:
        if self.drafter is None or self.num_drafts == 0:
            return None
        context = self.drafter.new_context()
        context.join()
        return context

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        many = _as_many(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(many)
        if len(params) != len(many):
            raise SamplingError(f"{len(many)} prompts came with {len(params)} params: give one for all, or one each")
        return [self._request(prompt, each) for prompt, each in zip(many, params, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        if params.logprobs is not None:
            raise SamplingError("logprobs are not reported by this engine yet: leave the option out")
        if params.stop and self.target.tokenizer is None:
            raise SamplingError("stop strings need the target's tokenizer, and this engine was built without one")
        params.check_vocabulary(self.target.vocab_size)
        ids = self._encode(prompt)
        budget = params.max_new_tokens
        if self.target.context_limit is not None:
            room = self.target.context_limit - len(ids)
            if room < 1:
                raise SamplingError(
                    f"the prompt has {len(ids)} tokens and the target's context holds {self.target.context_limit}, "
                    "prompt and output together: shorten the prompt"
                )
            budget = min(budget, room)
        return Request(ids, params, budget, self.target.eos_token_ids, self.target.tokenizer)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.target.tokenizer is None:
                raise SamplingError("a text prompt needs the target's tokenizer, and this engine was built without one")
            ids = list(self.target.tokenizer(prompt)["input_ids"])
        else:
            try:
                ids = [index(token) for token in prompt]
            except TypeError:
                raise SamplingError(f"a prompt is text or token ids; this one is {prompt!r:.80}") from None
        if not ids:
            raise SamplingError("the prompt is empty: give at least one token")
        outside = [token for token in ids if not 0 <= token < self.target.vocab_size]
        if outside:
            raise SamplingError(f"the prompt has the id {outside[0]}; the target's ids are 0..{self.target.vocab_size - 1}")
        return ids

    def _warn_of_low_acceptance(self, stats: AcceptanceStats) -> None:
        self._acceptance = AcceptanceStats.total((self._acceptance, stats))
        broken = self._acceptance.skipped[NOT_FINITE]
        cycles, committed = self._acceptance.num_cycles + broken, self._acceptance.num_committed + broken
        if self._warned or cycles < self.CYCLES_BEFORE_WARNING:
            return
        if committed < self.ACCEPTANCE_FLOOR * cycles:
            self._warned = True
            warnings.warn(
                f"the target accepts hardly any drafts: {committed / cycles:.2f} tokens per cycle over {cycles} cycles, "
                f"{self.ACCEPTANCE_FLOOR} is the least that pays. Usual causes: a drafter made for another target or another "
                "version of it, a chat template or thinking mode it was not trained on, wrong taps, quantised target "
                f"weights, a high temperature, numbers that overflow the dtype ({broken} cycles had non-finite ones).",
                LowAcceptanceWarning,
                stacklevel=3,
            )


def _facts(target: Target) -> TargetFacts:
    special = {f"end-of-sequence ({token})": token for token in target.eos_token_ids}
    padding = getattr(target.tokenizer, "pad_token_id", None)
    if padding is not None:
        special["padding"] = int(padding)
    return TargetFacts(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
        special_ids=special,
    )


def _drafts_per_cycle(drafter: Drafter | None, block_size: int | None) -> int:
    if block_size is not None and block_size < 1:
        raise CompatibilityError(f"block size {block_size}: it is at least 1, the anchor alone, which turns drafting off")
    if drafter is None:
        return 0
    trained = drafter.config.block_size
    if block_size is None:
        return trained - 1
    if block_size > trained:
        raise CompatibilityError(
            f"block size {block_size} was asked and the drafter was trained for blocks of {trained} "
            f"({trained - 1} drafts): ask for at most {trained}"
        )
    if block_size == 1:
        warnings.warn("block size 1 holds the anchor alone: drafting is off, the target decodes plainly", stacklevel=4)
    return block_size - 1


def _drafts_before_an_end(proposal: Proposal, stop_ids: Collection[int]) -> Tensor:
    """[B] int64. Rows past a draft that ends the text are for nobody: plain decoding shows no option such a history."""
    ends = torch.isin(proposal.tokens, torch.tensor(sorted(stop_ids), dtype=torch.int64, device=proposal.tokens.device))
    return torch.minimum(proposal.lengths, (~ends).long().cumprod(-1).sum(-1))


def _no_drafts(like: Tensor) -> Proposal:
    return Proposal(tokens=like.new_zeros(1, 0), lengths=like.new_zeros(1))


def _next_token(verdict: Verdict) -> int:
    return _checked(int(verdict.next_token.item()))


def _to_host(proposal: Proposal, verdict: Verdict) -> tuple[list[int], int, int, int]:
    """drafts, their number, n, next token: all that the host needs of one cycle, in one transfer."""
    parts = (proposal.tokens[0], proposal.lengths, verdict.num_accepted, verdict.next_token)
    *drafts, drafted, n, token = torch.cat(parts).tolist()
    return drafts, drafted, n, token


def _checked(token: int) -> int:
    if token == BROKEN:
        raise Dflash2Error(
            "the target's logits are NaN or infinite: no token can be chosen. Try --dtype float32, and check the target"
        )
    return token


def _as_many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]
    return items
