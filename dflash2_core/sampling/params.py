"""What a request asks of sampling, checked at the door."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Protocol

from torch import Tensor

from dflash2_core.errors import SamplingError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(history [T] int64, logits [V] float) -> logits [V]. The history is the prompt and everything after it, the block's
own tokens included. The function may change the logits in place, never the history."""


class Constraint(Protocol):
    """What a text must be like: makes a logits processor of its own for every request. See `sampling/constraints.py`."""

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        """The processor of a request whose text begins after these ids."""
        ...


MOST = 1e6
"""Beyond any logit, and far enough from what float32 holds that no sum of options overflows."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's options. Raises SamplingError, with what was found and what is allowed.

    temperature         finite, >= 0; 0 is greedy
    top_k               >= 0; 0 is off. Ties at the edge: the lowest ids stay
    top_p               in (0, 1]; 1 is off. Ties at the edge: the lowest ids stay
    min_p               in [0, 1]; 0 is off; 1 keeps the most probable id alone (of tied ones the lowest)
    repetition_penalty  1e-6 .. 1e6; 1 is off; over prompt and output, as CTRL (Keskar et al. 2019) has it
    presence_penalty    -1e6 .. 1e6; over the output only, as OpenAI has it
    frequency_penalty   -1e6 .. 1e6; over the output only, as OpenAI has it
    logit_bias          id -> -1e6 .. 1e6, or -inf for an id that must never come; None is off
    seed                any 64-bit integer; None leaves the choice to the engine
    n                   >= 1, completions of the prompt; the i-th is what seed + i alone would give
    max_new_tokens      >= 1
    stop                strings that end the text; one string or several, none empty
    stop_token_ids      ids that end the text
    ignore_eos          carry on past the model's own end of sequence
    logprobs            how many alternatives to report per token; None is off
    logits_processor    called once per judged row, after bias and penalties; None is off
    constraint          a grammar or the like, after `logits_processor`; None is off
    speculate           False: this request is decoded plainly, its output is the same
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    n: int = 1
    max_new_tokens: int = 256
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logits_processor: LogitsProcessor | None = None
    constraint: Constraint | None = None
    speculate: bool = True

    def __post_init__(self) -> None:
        self._settle("temperature", _number(self.temperature), lambda x: x >= 0, "a finite number >= 0 (0 is greedy)")
        self._settle("top_k", _integer(self.top_k), lambda x: x >= 0, "an integer >= 0 (0 is off)")
        self._settle("top_p", _number(self.top_p), lambda x: 0 < x <= 1, "a number in (0, 1] (1 is off)")
        self._settle("min_p", _number(self.min_p), lambda x: 0 <= x <= 1, "a number in [0, 1] (0 is off)")
        self._settle(
            "repetition_penalty",
            _number(self.repetition_penalty),
            lambda x: 1 / MOST <= x <= MOST,
            f"a number from {1 / MOST:g} to {MOST:g} (1 is off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._settle(name, _number(getattr(self, name)), lambda x: abs(x) <= MOST, f"a number within {MOST:g} (0 is off)")
        for name in ("n", "max_new_tokens"):
            self._settle(name, _integer(getattr(self, name)), lambda x: x >= 1, "an integer >= 1")
        if self.seed is not None:
            self._settle("seed", _integer(self.seed), lambda x: -(2**63) <= x < 2**64, "a 64-bit integer, or None")
        if self.logprobs is not None:
            self._settle("logprobs", _integer(self.logprobs), lambda x: x >= 0, "an integer >= 0, or None")
        for name in ("ignore_eos", "speculate"):
            if not isinstance(getattr(self, name), bool):
                raise _refusal(name, getattr(self, name), "True or False")
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise _refusal("logits_processor", self.logits_processor, "a function (history, logits) -> logits, or None")
        if self.constraint is not None and not hasattr(self.constraint, "begin"):
            raise _refusal("constraint", self.constraint, "an object with a method begin(prompt), or None")
        self._settle_stops()
        self._settle_bias()

    @property
    def is_greedy(self) -> bool:
        """The ids are a function of the logits: temperature 0, or a filter that leaves one id whatever the logits."""
        return self.temperature == 0 or self.top_k == 1 or self.min_p == 1

    @property
    def needs_history(self) -> bool:
        """The judged logits depend on the tokens before them by more than the target's own forward pass."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.logits_processor is not None
        )

    @property
    def rewrites_logits(self) -> bool:
        """The judged logits are not the target's own."""
        return self.needs_history or bool(self.logit_bias)

    def bound_to(self, prompt: Sequence[int]) -> "SamplingParams":
        """The options of a request with this prompt: its constraint has become part of its logits processor."""
        if self.constraint is None:
            return self
        constrain, first = self.constraint.begin(prompt), self.logits_processor
        both = constrain if first is None else lambda history, logits: constrain(history, first(history, logits))
        return replace(self, constraint=None, logits_processor=both)

    def check_vocabulary(self, size: int) -> None:
        """Raises SamplingError if an option names an id that a vocabulary of `size` ids does not have."""
        for name, ids in (("logit_bias", self.logit_bias or {}), ("stop_token_ids", self.stop_token_ids)):
            outside = [token for token in ids if token >= size]
            if outside:
                raise SamplingError(f"{name} names the id {outside[0]}; the target's ids are 0..{size - 1}.")

    def _settle(self, name: str, value: Any, allowed: Callable[[Any], bool], expected: str) -> None:
        if value is None or not allowed(value):
            raise _refusal(name, getattr(self, name), expected)
        object.__setattr__(self, name, value)

    def _settle_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        texts = tuple(stop) if isinstance(stop, Iterable) else ("",)
        if not all(isinstance(text, str) and text for text in texts):
            raise _refusal("stop", self.stop, "a string or several, none of them empty")
        object.__setattr__(self, "stop", texts)
        ids = _integers(self.stop_token_ids)
        if ids is None:
            raise _refusal("stop_token_ids", self.stop_token_ids, "integers >= 0")
        object.__setattr__(self, "stop_token_ids", ids)

    def _settle_bias(self) -> None:
        if self.logit_bias is None:
            return
        expected = f"a mapping from ids (integers >= 0) to numbers within {MOST:g}, or to -inf for an id that must never come"
        if not isinstance(self.logit_bias, Mapping):
            raise _refusal("logit_bias", self.logit_bias, expected)
        ids = _integers(self.logit_bias)
        biases = [-math.inf if b == -math.inf else _number(b) for b in self.logit_bias.values()]
        if ids is None or any(b is None or MOST < abs(b) < math.inf for b in biases):
            raise _refusal("logit_bias", self.logit_bias, expected)
        object.__setattr__(self, "logit_bias", dict(zip(ids, biases, strict=True)))

    def __hash__(self) -> int:
        return hash((self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.max_new_tokens))


def _refusal(name: str, found: object, expected: str) -> SamplingError:
    return SamplingError(f"{name} is {found!r}; it must be {expected}.")


def _number(value: object) -> float | None:
    if isinstance(value, bool | str | bytes):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _integers(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        return None
    integers = tuple(_integer(value) for value in values)
    kept = tuple(value for value in integers if value is not None and value >= 0)
    return kept if len(kept) == len(integers) else None
