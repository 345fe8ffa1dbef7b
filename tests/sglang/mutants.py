"""Faults put into the verification of a running server, for tests that have to find them; and SGLang's own retractions.

A plugin of SGLang's beside dflash2's own, found through `PYTHONPATH`. It looks into a file before every block, so that one
server is sound and each mutant in turn.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch

VARIABLE = "DFLASH2_TEST_MUTANT"
RETRACTING = "retracting"
"""No fault: every fourth step SGLang takes the memory of some requests away, as it can be told to by itself."""


def tempered_p(worker: Any) -> dict[str, Callable[..., Any]]:
    """The target's law at four fifths of the temperature."""
    original = worker.probabilities
    return {"probabilities": lambda logits, filters: original(logits, replace(filters, temperature=filters.temperature * 0.8))}


def min_p_ignored(worker: Any) -> dict[str, Callable[..., Any]]:
    """As SGLang's own verification does."""
    original = worker.probabilities
    return {"probabilities": lambda logits, filters: original(logits, replace(filters, min_p=filters.min_p * 0))}


def top_k_a_half_more(worker: Any) -> dict[str, Callable[..., Any]]:
    """A filter that lets thirty ids pass where twenty were asked."""
    original = worker.probabilities
    return {"probabilities": lambda logits, filters: original(logits, replace(filters, top_k=filters.top_k * 3 // 2))}


def softmax_q_of_an_argmax_walk(worker: Any) -> dict[str, Callable[..., Any]]:
    """Drafts taken by argmax, and verified as if they had been drawn."""
    original = worker.propose

    def propose(*args: Any) -> Any:
        proposal = original(*args)
        best = proposal.probs.argmax(-1, keepdim=True)
        return replace(proposal, tokens=proposal.candidates.gather(-1, best).squeeze(-1))

    return {"propose": propose}


def every_draft_accepted(worker: Any) -> dict[str, Callable[..., Any]]:
    """As with SGLang's simulated acceptance, one draft more than the target wants."""
    original = worker.verify_sampled

    def verify_sampled(proposal: Any, *rest: Any) -> Any:
        verdict = original(proposal, *rest)
        more = torch.minimum(verdict.num_accepted + 1, proposal.lengths)
        return replace(verdict, num_accepted=more)

    return {"verify_sampled": verify_sampled}


MUTANTS = {
    mutant.__name__: mutant
    for mutant in (
        tempered_p,
        min_p_ignored,
        top_k_a_half_more,
        softmax_q_of_an_argmax_walk,
        every_draft_accepted,
    )
}


def install() -> None:
    """The entry point: in the scheduler's process, what a mutant changes asks each time whether it is its turn."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.managers import scheduler

    from dflash2_sglang import worker

    scheduler.TEST_RETRACT_INTERVAL = 4
    scheduler.Scheduler.update_running_batch = _retracting(scheduler, scheduler.Scheduler.update_running_batch)
    changes = {name: mutant(worker) for name, mutant in MUTANTS.items()}
    for attribute in ("probabilities", "propose", "verify_sampled"):
        setattr(worker, attribute, _switched(getattr(worker, attribute), attribute, changes))


def _switched(original: Callable[..., Any], attribute: str, changes: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    @wraps(original)
    def switched(*args: Any) -> Any:
        return changes.get(_switched_to(), {}).get(attribute, original)(*args)

    return switched


def _retracting(scheduler: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update_running_batch(*args: Any, **kwargs: Any) -> Any:
        scheduler.TEST_RETRACT = _switched_to() == RETRACTING
        return original(*args, **kwargs)

    return update_running_batch


def _switched_to() -> str:
    return Path(os.environ[VARIABLE]).read_text()


def plugged(folder: Path) -> dict[str, str]:
    """Makes the plugin findable; returns the environment of the one server that is to have it, and is switched in `folder`."""
    here = folder / "plugin"
    described = here / "dflash2_mutants-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: dflash2-mutants\nVersion: 0\n")
    (described / "entry_points.txt").write_text("[sglang.srt.plugins]\nmutants = dflash2_mutants:install\n")
    (here / "dflash2_mutants.py").symlink_to(__file__)
    switch(folder, "sound")
    return {"PYTHONPATH": str(here), VARIABLE: str(folder / "mutant")}


def switch(folder: Path, name: str) -> None:
    (folder / "mutant").write_text(name)


@contextmanager
def mutated(folder: Path, name: str) -> Iterator[None]:
    """Within it, the server that was started with `plugged(folder)` has this fault."""
    assert name in (*MUTANTS, RETRACTING)
    switch(folder, name)
    try:
        yield
    finally:
        switch(folder, "sound")
