"""Do two engines write after the same law? For targets whose distribution the core cannot compute itself.

Texts of the same prompts are sorted into a tree of prefixes. Where both engines came through a prefix, what they wrote next is
compared; were the law the same, it would not matter which engine a text is from, so labels are exchanged within each prompt
(a permutation test, exact at any number of texts).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash2_core.errors import SamplingError

DEPTH = 24
LEAST = 10
"""Texts of both sides that a prefix needs: where only a few came by, there is noise and nothing to see."""
PERMUTATIONS = 4999
PLANTED = (0.02, 0.05, 0.1, 0.2, 0.4)

Texts = Sequence[tuple[object, Sequence[int]]]
"""(group: the prompt and its options, the ids written)"""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TwoSampleReport:
    """num_texts  of both engines      alpha, p_value  error rate, and what was found

    smallest_favour  of planted faults "the most frequent id in the place of a share of the tokens", the smallest share that
                     was found at this sample size; None: not even the largest
    """

    num_texts: tuple[int, int]
    alpha: float
    p_value: float
    smallest_favour: float | None

    @property
    def lossless(self) -> bool:
        """Whether nothing speaks against one law."""
        return self.p_value >= self.alpha

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self) | {"lossless": self.lossless}

    def __str__(self) -> str:
        verdict = "no difference seen" if self.lossless else "NOT one law"
        power = "nothing that was planted" if self.smallest_favour is None else f"a favoured id in {self.smallest_favour:.0%}"
        return (
            f"{self.num_texts[0]} and {self.num_texts[1]} texts: {verdict}, p = {self.p_value:.2g}; error rate {self.alpha:g}; "
            f"would have found {power} of the tokens"
        )


def compare_laws(plain: Texts, drafted: Texts, *, alpha: float = 1e-3, seed: int = 0) -> TwoSampleReport:
    """Hold the texts of one engine against those of the other. Raises SamplingError if either wrote none."""
    if not plain or not drafted:
        raise SamplingError("one of the engines wrote no text: there is nothing to compare")
    random = np.random.default_rng(seed)
    planted = (share for share in PLANTED if _p_value(plain, _favouring(drafted, share, random), random) < alpha)
    return TwoSampleReport(
        num_texts=(len(plain), len(drafted)),
        alpha=alpha,
        p_value=_p_value(plain, drafted, random),
        smallest_favour=next(planted, None),
    )


def _p_value(plain: Texts, drafted: Texts, random: np.random.Generator) -> float:
    texts = [*plain, *drafted]
    is_drafted = np.repeat([False, True], [len(plain), len(drafted)])
    of_text, nodes, branches = _tree(texts)
    _, group = np.unique([hash(name) for name, _ in texts], return_inverse=True)
    if not len(nodes):
        return 1.0
    found = _distance(is_drafted, of_text, nodes, branches)
    least = found * (1 - 1e-12)  # equal arrangements may sum in another order
    at_least = 0
    for _ in range(PERMUTATIONS):
        order = np.lexsort((random.random(len(texts)), group))
        shuffled = np.empty_like(is_drafted)
        shuffled[np.lexsort((np.arange(len(texts)), group))] = is_drafted[order]
        at_least += _distance(shuffled, of_text, nodes, branches) >= least
    return (1 + at_least) / (1 + PERMUTATIONS)


def _tree(texts: Texts) -> tuple[Ints, Ints, Ints]:
    """One entry for each id behind a prefix that enough texts share: which text, which prefix, which branch it takes there."""
    numbers: dict[object, int] = {}
    entries = []
    for i, (group, ids) in enumerate(texts):
        prefix: tuple[object, ...] = (group,)
        for token in ids[:DEPTH]:
            node, prefix = prefix, (*prefix, token)
            entries.append((i, numbers.setdefault(node, len(numbers)), numbers.setdefault(prefix, len(numbers))))
    of_text, nodes, branches = np.array(entries, dtype=np.int64).T
    enough = np.bincount(nodes)[nodes] >= LEAST
    return of_text[enough], nodes[enough], branches[enough]


def _distance(is_drafted: NDArray[np.bool_], of_text: Ints, nodes: Ints, branches: Ints) -> float:
    """Between the two sides' shares of each branch, squared, weighted by how often both came to its node."""
    side, size = is_drafted[of_text], int(branches.max()) + 1
    at_node, at_branch = (
        [np.bincount(places[mask], minlength=size).astype(float) for mask in (~side, side)] for places in (nodes, branches)
    )
    node_of = np.zeros(size, dtype=np.int64)
    node_of[branches] = nodes
    n, m = (counts[node_of] for counts in at_node)
    both = (n > 0) & (m > 0)
    apart = at_branch[0][both] / n[both] - at_branch[1][both] / m[both]
    return float((apart**2 * n[both] * m[both] / (n[both] + m[both])).sum())


def _favouring(texts: Texts, share: float, random: np.random.Generator) -> Texts:
    """The same texts, in which a share of the ids is the most frequent one after its prefix; a changed text ends there."""
    counts: dict[object, dict[int, int]] = {}
    for group, ids in texts:
        for i, token in enumerate(ids[:DEPTH]):
            after = counts.setdefault((group, *ids[:i]), {})
            after[token] = after.get(token, 0) + 1
    changed = []
    for group, ids in texts:
        kept: list[int] = []
        for token in ids[:DEPTH]:
            after = counts[(group, *kept)]
            favourite = max(after, key=lambda each: (after[each], -each))
            kept.append(favourite if random.random() < share else token)
            if kept[-1] != token:
                break
        changed.append((group, kept))
    return changed
