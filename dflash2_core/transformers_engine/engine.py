"""The engine: from prompts to completions, through a scheduler and its batch."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from operator import index
from pathlib import Path
from typing import Any

import torch

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.compatibility import TargetFacts, require_fit, special_ids
from dflash2_core.drafter import Drafter, load_drafter
from dflash2_core.errors import CompatibilityError, SamplingError
from dflash2_core.sampling import SamplingParams
from dflash2_core.transformers_engine.batch import NOT_FINITE, Batch
from dflash2_core.transformers_engine.requests import Chunk, Completion, Request, special_tokens
from dflash2_core.transformers_engine.scheduler import Scheduler
from dflash2_core.transformers_engine.target import Target
from dflash2_core.transformers_engine.width import Auto, Fixed

Prompt = str | Sequence[int]
WIDTHS: dict[str, type[Fixed] | type[Auto]] = {"fixed": Fixed, "auto": Auto}


class LowAcceptanceWarning(UserWarning):
    """The drafter runs, but the target hardly ever takes what it drafts."""


class TransformersEngine:
    """Speculative decoding of a Hugging Face target with a DFlash drafter; the output is what the target alone would write.

    target          the model whose text it is
    drafter         None: plain decoding through the same loop
    block_size      rows of a block, anchor included: 2 .. the checkpoint's; None is the checkpoint's, 1 turns drafting off
    max_batch_size  requests that `generate` has in flight at once
    prefill_chunk   most prompt tokens in one pass: bounds the memory that a long prompt takes
    width           "fixed": every cycle drafts a whole block; "auto": as much of it as pays by what is measured, also nothing.
                    Greedy ids are the same; what is sampled, whose law is the same, then differs from run to run
    compile         the drafter goes through `torch.compile`, which needs a C++ compiler and, at first, minutes: for servers
    Raises CompatibilityError for a drafter that does not fit, and for what cannot be compiled here.
    """

    ACCEPTANCE_FLOOR = 1.2
    """Tokens per cycle under which drafting costs more than it brings."""
    CYCLES_BEFORE_WARNING = 64

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        block_size: int | None = None,
        max_batch_size: int = 1,
        prefill_chunk: int = 1024,
        width: str = "fixed",
        compile: bool = False,
    ) -> None:
        if width not in WIDTHS:
            raise CompatibilityError(f"width is {width!r}; it must be one of {', '.join(WIDTHS)}")
        for name, value in (("max_batch_size", max_batch_size), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise CompatibilityError(f"{name} is {value}; it must be at least 1")
        if max_batch_size > 1:
            target.require_batches()
        self.target = target
        self.max_batch_size, self.prefill_chunk = max_batch_size, prefill_chunk
        self.drafter = drafter
        self.num_drafts = _drafts_per_cycle(drafter, block_size)
        self._width = WIDTHS[width if self.num_drafts else "fixed"](self.num_drafts)
        self._acceptance = AcceptanceStats()
        self._warned = False
        if drafter is not None:
            own = {name for name, _ in drafter.named_parameters()}
            require_fit(drafter.config, _facts(target), own=own)
            if compile:
                _compile(drafter, target)

    @classmethod
    def from_pretrained(
        cls,
        target: str | Path,
        drafter: str | Path | None = None,
        *,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_batch_size: int = 1,
        prefill_chunk: int = 1024,
        block_size: int | None = None,
        width: str = "fixed",
        compile: bool = False,
    ) -> "TransformersEngine":
        """Load both from local folders.

        dtype   "auto": float32 on a CPU, the checkpoint's on CUDA
        device  "auto": CUDA if there is one
        Raises CheckpointError, ConfigError, CompatibilityError.
        """
        model = Target.from_pretrained(target, dtype=dtype, device=device)
        loaded = None if drafter is None else load_drafter(drafter, dtype=model.dtype, device=model.device)
        options: dict[str, Any] = {"max_batch_size": max_batch_size, "prefill_chunk": prefill_chunk, "width": width}
        return cls(model, loaded, block_size=block_size, compile=compile, **options)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete each prompt; with `n`, each `n` times, one after the other in the list.

        prompts  a string or ids, one or many
        params   one for all, or one each; None: greedy, 256 tokens
        Raises SamplingError for a request that cannot be honoured, before any token is made.
        """
        requests = self._requests(prompts, params)
        scheduler = self.scheduler(min(self.max_batch_size, len(requests)))
        scheduler.submit(requests)
        completions: dict[Request, Completion] = {}
        for request, chunk in self._run(scheduler):
            if chunk.completion is not None:
                completions[request] = chunk.completion
        return [completions[request] for request in requests]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Complete one prompt, cycle by cycle. The last chunk carries the Completion. Errors as for `generate`, at once."""
        requests = self._requests([prompt], params)
        if len(requests) > 1:
            raise SamplingError(f"n is {len(requests)}; a stream has one completion: open one each, with seeds of their own")
        scheduler = self.scheduler(1)
        scheduler.submit(requests)
        return (chunk for _, chunk in self._run(scheduler))

    def scheduler(self, max_rows: int | None = None) -> Scheduler:
        """An idle scheduler of this engine with rows of its own, `max_batch_size` of them unless told otherwise."""
        rows = max(1, self.max_batch_size if max_rows is None else max_rows)
        sizes = {"num_drafts": self.num_drafts, "max_rows": rows, "prefill_chunk": self.prefill_chunk}
        return Scheduler(Batch(self.target, self.drafter, self._width, **sizes))

    def _run(self, scheduler: Scheduler) -> Iterator[tuple[Request, Chunk]]:
        while not scheduler.is_idle:
            for request, chunk in scheduler.step():
                if request.error is not None:
                    raise request.error
                yield request, chunk
                if chunk.completion is not None:
                    self._warn_of_low_acceptance(request.stats)

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        many = _as_many(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(many)
        if not all(isinstance(each, SamplingParams) for each in params):
            raise SamplingError(f"params are SamplingParams, one for all or one each; these are {params!r:.80}")
        if len(params) != len(many):
            raise SamplingError(f"{len(many)} prompts came with {len(params)} params: give one for all, or one each")
        each_of = zip(many, params, strict=True)
        return [self.request(prompt, each, sample) for prompt, each in each_of for sample in range(each.n)]

    def request(self, prompt: Prompt, params: SamplingParams, sample: int = 0) -> Request:
        """A checked request for a scheduler; `sample` of the `params.n` completions of its prompt."""
        if params.stop and self.target.tokenizer is None:
            raise SamplingError("stop strings need the target's tokenizer, and this engine was built without one")
        params.check_vocabulary(self.target.vocab_size)
        _require_visible_stops(params, special_tokens(self.target.tokenizer))
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
        return Request(ids, params.bound_to(ids), budget, self.target.eos_token_ids, self.target.tokenizer, sample)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.target.tokenizer is None:
                raise SamplingError("a text prompt needs the target's tokenizer, and this engine was built without one")
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                raise SamplingError(f"the prompt cannot be written in UTF-8: {error.reason}") from None
            ids = list(self.target.tokenizer(prompt)["input_ids"])
        else:
            try:
                ids = [_token_id(token) for token in prompt]
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
                stacklevel=4,
            )


def _compile(drafter: Drafter, target: Target) -> None:
    """Compile, and draft two blocks of nothing: what cannot be compiled is to fail here, not within a request."""
    drafter.compile()
    context, config = drafter.new_context(), drafter.config
    context.join()
    anchor, greedy = torch.zeros(1, dtype=torch.int64, device=target.device), torch.zeros(1, device=target.device)
    width = len(config.target_layer_ids) * config.target_hidden_size
    try:
        for T in (2, config.block_size):  # the second shows that lengths change
            context.append(torch.zeros(1, T, width, dtype=target.dtype, device=target.device), [T])
            drafter.propose(
                context, anchor, [config.num_drafts], embed=target.embed, head=target.head, temperature=greedy, streams=None
            )
    except Exception as error:  # compilers and their backends raise what they like
        reason = " ".join(str(error).split())
        raise CompatibilityError(
            f"the drafter could not be compiled here: {type(error).__name__}: {reason:.300}. `compile` needs a C++ compiler "
            "that torch.compile can use; without `compile` the drafter runs as it is"
        ) from error


def _facts(target: Target) -> TargetFacts:
    return TargetFacts(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
        special_ids=special_ids(list(target.eos_token_ids), getattr(target.tokenizer, "pad_token_id", None)),
        table_size=target.embed(torch.zeros(1, dtype=torch.int64, device=target.device)).shape[-1],
    )


def _drafts_per_cycle(drafter: Drafter | None, block_size: int | None) -> int:
    if block_size is not None and block_size < 1:
        raise CompatibilityError(f"block size {block_size}: it is at least 1, the anchor alone, which turns drafting off")
    if drafter is None:
        if block_size is not None:
            raise CompatibilityError(f"block size {block_size} was asked and there is no drafter: leave it out, or give one")
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


def _as_many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    try:
        items: list[Any] = list(prompts.tolist() if hasattr(prompts, "tolist") else prompts)
    except TypeError:
        raise SamplingError(f"a prompt is text or token ids; this one is {prompts!r:.80}") from None
    if items and all(hasattr(item, "__index__") and not hasattr(item, "__len__") for item in items):  # tensors have both
        return [items]
    return items


def _require_visible_stops(params: SamplingParams, special: Collection[str]) -> None:
    """A special token leaves no text: alone it is found by its id, among other text it would never be."""
    for stop in params.stop:
        inside = [token for token in special if token in stop and token != stop]
        if inside and stop not in special:
            raise SamplingError(
                f"the stop string {stop!r} holds the special token {inside[0]!r}, which leaves no text: give the token "
                "as a stop string of its own, or its id in stop_token_ids"
            )


def _token_id(token: Any) -> int:
    if isinstance(token, bool):
        raise TypeError("True and False are no ids")
    return index(token)
