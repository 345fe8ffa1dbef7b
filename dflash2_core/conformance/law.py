"""Were these texts drawn from the target's own distribution?

Every emitted token is held against p, the target's distribution at its place after the request's options, which the core
computes by itself from the same weights (teacher-forced, float32 logits). The texts may come from any engine.

Under the null hypothesis x_t ~ p_t given everything before it, so that sums of centred terms are martingales, randomised
ranks are independent and uniform, and likelihood ratios have mean 1. Five statistics share the error rate equally
(Bonferroni), each sharp where the others are blunt:

    temper    sum of log p(x) - E log p, the score of a tempering p^beta at beta = 1: a temperature that is off
    favour    how often x is the most probable id, against p of it: drafts accepted too often or too rarely
    ranks     the place of x in p's mass, ids from the most to the least probable: any other shape (Kolmogorov-Smirnov)
    ids       the same with ids in their own order: an error that does not follow p
    strays    the likelihood ratio against "one token in a thousand comes from anywhere": rare, but impossible ids

`temper` and `favour` are standardised by their exact conditional variances and taken as normal, which wants some thousands of
tokens; `ranks` and `ids` by the Dvoretzky-Kiefer-Wolfowitz inequality and `strays` by Markov's, at any number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.sampling import SamplingParams, target_distribution

if TYPE_CHECKING:
    from dflash2_core.transformers_engine.target import Target

STRAYS = 1e-3
POWER = 0.99
ALL = "all"
STATISTICS = ("temper", "favour", "ranks", "ids", "strays")


@dataclass(frozen=True)
class Written:
    """A text that an engine wrote: the prompt's ids, every id after it (the one that ended it included), and what was asked."""

    prompt: Sequence[int]
    token_ids: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True)
class LawReport:
    """What the tokens say.

    num_tokens    how many were held against p
    alpha         how often a lossless engine would be called lossy
    p_values      one a statistic, Bonferroni's factor applied: below alpha speaks against the engine
    impossible    tokens to which p gives no mass at all: one is enough
    smallest_tempering  factor on the temperature that would have been found with probability 0.99 (as would its inverse)
    smallest_favour     share of the other tokens, likewise: that many replaced by the most probable id of their place
    smallest_distance   Kolmogorov-Smirnov distance of the ranks, likewise
    """

    num_tokens: int
    alpha: float
    p_values: Mapping[str, float]
    impossible: int
    smallest_tempering: float
    smallest_favour: float
    smallest_distance: float

    @property
    def lossless(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.impossible and min(self.p_values.values()) >= self.alpha

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self) | {"lossless": self.lossless}

    def __str__(self) -> str:
        if self.impossible:
            found = f"NOT lossless: {self.impossible} of {self.num_tokens} tokens have no probability at all"
        else:
            name = min(self.p_values, key=lambda statistic: self.p_values[statistic])
            verdict = "as the target's own" if self.lossless else "NOT lossless"
            found = f"{self.num_tokens} tokens, {verdict}: the strongest statistic is {name!r}, p = {self.p_values[name]:.2g}"
        return (
            f"{found}; error rate {self.alpha:g}; would have found a temperature off by {self.smallest_tempering - 1:.1%}, "
            f"the likeliest id in the place of {self.smallest_favour:.1%} of the others, ranks "
            f"{self.smallest_distance:.3f} apart (each with probability {POWER:g})"
        )


def check_law(target: "Target", texts: Iterable[Written], *, alpha: float = 1e-6, seed: int = 0) -> LawReport:
    """Hold every token of `texts` against the target's own distribution.

    target  in float32
    alpha   error rate of the whole verdict
    seed    of the randomised ranks: the report is a function of the texts and this number
    Raises SamplingError if there is no token, or if a text is greedy, which has no law: compare its ids.
    """
    return check_laws(target, {"": texts}, alpha=alpha, seed=seed)[""]


def check_laws(
    target: "Target", groups: Mapping[str, Iterable[Written]], *, alpha: float = 1e-6, seed: int = 0
) -> dict[str, LawReport]:
    """`check_law` of every group by itself and, where there are several, of ALL together; alpha is shared among them."""
    generator = torch.Generator().manual_seed(seed)
    places = {name: _places(target, texts, generator) for name, texts in groups.items()}
    if len(places) > 1:
        places[ALL] = _Places(
            [term for each in places.values() for term in each.terms], sum(each.impossible for each in places.values())
        )
    return {name: each.report(alpha / len(places)) for name, each in places.items()}


def _places(target: "Target", texts: Iterable[Written], generator: torch.Generator) -> "_Places":
    places = _Places([], 0)
    for text in texts:
        if text.params.is_greedy:
            raise SamplingError("a greedy text has no law to be held against: compare its ids with plain decoding's")
        if text.token_ids:
            p = distributions(target, text)
            places.add(p, torch.tensor(text.token_ids), torch.rand(len(p), generator=generator, dtype=p.dtype))
    if not places.terms:
        raise SamplingError("no token was written: there is nothing to test")
    return places


@torch.inference_mode()
def distributions(target: "Target", text: Written) -> Tensor:
    """p [T, V] float64 at the place of each emitted token, on the host, from one pass over the whole text."""
    T = len(text.token_ids)
    ids = torch.tensor([[*text.prompt, *text.token_ids[:-1]]], device=target.device)
    logits, _ = target.forward(ids, target.new_cache(), rows=T)
    drafts = [list(text.token_ids[:-1])]
    p = target_distribution(logits.double(), [text.params], prompts=[text.prompt], outputs=[[]], drafts=drafts)
    return p[0].cpu()


@dataclass
class _Places:
    """Per token that p can give, what the statistics are made of: terms, [T, 8] each."""

    terms: list[Tensor]
    impossible: int

    def add(self, p: Tensor, x: Tensor, u: Tensor) -> None:
        """p [T, V] float64, x [T] the ids emitted there, u [T] uniform: a rank is the mass before x and this share of x's."""
        V = p.shape[1]
        log_p, chosen = torch.where(p > 0, p, 1).log(), p.gather(1, x[:, None])[:, 0]
        possible = chosen > 0
        self.impossible += int((~possible).sum())
        mean = (p * log_p).sum(1)
        variance = (p * (log_p - mean[:, None]) ** 2).sum(1)
        most, favourite = p.max(1)
        ids = torch.arange(V)
        likelier = (p > chosen[:, None]) | ((p == chosen[:, None]) & (ids < x[:, None]))
        terms = (
            log_p.gather(1, x[:, None])[:, 0] - mean,
            variance,
            (x == favourite).double() - most,
            most * (1 - most),
            1 - most,
            (p * likelier).sum(1) + u * chosen,
            (p * (ids < x[:, None])).sum(1) + u * chosen,
            torch.log1p(STRAYS * (1 / (V * chosen) - 1)),
        )
        self.terms.append(torch.stack(terms, dim=1)[possible])

    def report(self, alpha: float) -> LawReport:
        """See `LawReport`."""
        temper, information, favour, mass, others, ranks, ids, strays = torch.cat(self.terms).unbind(1)
        N, each = len(temper), alpha / len(STATISTICS)
        p_values = {
            "temper": _two_sided(float(temper.sum()), float(information.sum())),
            "favour": _two_sided(float(favour.sum()), float(mass.sum())),
            "ranks": _kolmogorov(ranks),
            "ids": _kolmogorov(ids),
            "strays": math.exp(min(0.0, -float(strays.sum()))),
        }
        reach = NormalDist().inv_cdf(1 - each / 2) + NormalDist().inv_cdf(POWER)
        apart = math.sqrt(math.log(2 / each) / (2 * N)) + math.sqrt(math.log(2 / (1 - POWER)) / (2 * N))
        return LawReport(
            num_tokens=N + self.impossible,
            alpha=alpha,
            p_values={name: min(1.0, len(STATISTICS) * p) for name, p in p_values.items()},
            impossible=self.impossible,
            smallest_tempering=1 + reach / math.sqrt(max(float(information.sum()), 1e-300)),
            smallest_favour=reach * math.sqrt(float(mass.sum())) / max(float(others.sum()), 1e-300),
            smallest_distance=apart,
        )


def _two_sided(total: float, variance: float) -> float:
    """p-value of a sum with mean 0; where nothing could vary, nothing is seen."""
    return math.erfc(abs(total) / math.sqrt(2 * variance)) if variance > 0 else 1.0


def _kolmogorov(ranks: Tensor) -> float:
    N = len(ranks)
    found, steps = ranks.sort().values, torch.arange(N + 1, dtype=ranks.dtype) / N
    distance = float(torch.maximum((found - steps[:-1]).max(), (steps[1:] - found).max()))
    return min(1.0, 2 * math.exp(-2 * N * distance**2))
