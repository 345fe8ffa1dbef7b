"""The look itself: engines are probed, one after the other, files are read, and every subject is asked for its findings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash2_core.diagnosis import gguf_files
from dflash2_core.diagnosis.blocks import Words, block_findings, block_in_words
from dflash2_core.diagnosis.chat import chat_findings
from dflash2_core.diagnosis.checkpoints import drafter_findings, target_findings
from dflash2_core.diagnosis.contexts import context_findings
from dflash2_core.diagnosis.dropped_keys import dropped_key_findings
from dflash2_core.diagnosis.dtypes import dtype_findings
from dflash2_core.diagnosis.engines import engine_findings, pair_findings, wrong_form
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, EngineSide, TargetSide
from dflash2_core.diagnosis.finding import Finding, by_level
from dflash2_core.diagnosis.fit import fit_findings
from dflash2_core.diagnosis.greedy_drafts import greedy_findings
from dflash2_core.diagnosis.licences import licence_findings
from dflash2_core.diagnosis.memory import ROWS, Memory, memory_of
from dflash2_core.diagnosis.own_engine import OwnEngine
from dflash2_core.diagnosis.reading import read_drafter, read_target
from dflash2_core.diagnosis.switches import switch_findings
from dflash2_core.diagnosis.tokenizers import tokenizer_findings
from dflash2_core.diagnosis.variables import variable_findings
from dflash2_core.diagnosis.verification import verification_findings
from dflash2_core.engines import Engine, EngineOptions
from dflash2_core.errors import Dflash2Error, EngineError

PROGRAMS = ("_PYTHON", "_SERVER")
PORT = 8080
"""Of the commands that are asked for; nothing is started."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user wants to know.

    engines    names that were given; empty: all that there are
    arguments  of the one engine that was given
    rows, context   requests at once, and positions of each; None: as many as the pair has
    """

    target: Path | None = None
    drafter: Path | None = None
    engines: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    rows: int = ROWS
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was seen, and what is to be said of it, the worst first."""

    engines: tuple[EngineSide, ...] = ()
    target: TargetSide | None = None
    drafter: DrafterSide | None = None
    memory: Memory | None = None
    blocks: tuple[Words, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    @property
    def sound(self) -> bool:
        """No finding is an error."""
        return all(finding.level != "error" for finding in self.findings)


def diagnose(
    asked: Asked,
    engines: Sequence[Engine | OwnEngine],
    environment: Mapping[str, str],
    *,
    doing: Callable[[str], Any] = lambda _: None,
) -> Diagnosis:
    """doing: is told what is being looked at. Raises CheckpointError for a path at which nothing is, EngineError for
    arguments that cannot be read."""
    if asked.arguments and len(asked.engines) != 1:
        raise EngineError("arguments behind -- are those of one engine: say which with --engine")
    target = drafter = None
    if asked.target is not None:
        doing("reading the target")
        target = read_target(asked.target)
    if asked.drafter is not None:
        doing("reading every weight of the drafter")
        drafter = read_drafter(asked.drafter)
    of_pair = list(_of_pair(asked, target, drafter))
    fits = target is not None and drafter is not None and all(finding.level != "error" for finding in of_pair)
    sides = []
    for engine in engines:
        doing(f"asking {engine.name}")
        side = _seen(engine, asked, environment)
        if fits and target is not None and drafter is not None and not side.report.problems:
            side = _with_pair(engine, side, target, drafter, asked)
        sides.append(side)
    findings = [*of_pair, *(finding for side in sides for finding in _of_engine(side, drafter, target))]
    config = drafter.config if drafter is not None else None
    return Diagnosis(
        engines=tuple(sides),
        target=target,
        drafter=drafter,
        memory=None if drafter is None else memory_of(drafter, target, rows=asked.rows, context=asked.context),
        blocks=() if config is None else tuple(block_in_words(config)),
        findings=tuple(by_level(findings)),
    )


def _of_pair(asked: Asked, target: TargetSide | None, drafter: DrafterSide | None) -> Iterator[Finding]:
    if target is not None:
        yield from target_findings(target)
        yield from chat_findings(drafter, target)
    if drafter is not None:
        yield from drafter_findings(drafter)
        yield from context_findings(drafter, target, context=asked.context)
        yield from licence_findings(drafter)
    if drafter is not None and target is not None:
        yield from fit_findings(drafter, target)
        yield from tokenizer_findings(drafter, target)
        yield from dtype_findings(drafter, target)


def _of_engine(side: EngineSide, drafter: DrafterSide | None, target: TargetSide | None) -> Iterator[Finding]:
    yield from engine_findings(side)
    if side.absent and not side.asked:
        return
    yield from variable_findings(side)
    yield from switch_findings(side)
    yield from verification_findings(side)
    if drafter is None:
        return
    yield from greedy_findings(side)
    yield from dropped_key_findings(side, drafter)
    if drafter.config is not None:
        yield from block_findings(side, drafter.config)
    if target is not None and target.sizes is not None:
        yield from pair_findings(side, target, drafter)


def variables_of(name: str) -> list[str]:
    """With which of them a user says where the engine `name` is."""
    return [f"DFLASH2_{name.upper().replace('-', '_')}{ending}" for ending in PROGRAMS]


def _seen(engine: Engine | OwnEngine, asked: Asked, environment: Mapping[str, str]) -> EngineSide:
    return EngineSide(
        report=engine.probe(),
        asked=engine.name in asked.engines,
        stated=next((name for name in variables_of(engine.name) if environment.get(name)), None),
        arguments=asked.arguments,
        variables=environment,
    )


def _with_pair(
    engine: Engine | OwnEngine, side: EngineSide, target: TargetSide, drafter: DrafterSide, asked: Asked
) -> EngineSide:
    """What its adapter says of the pair. Nothing is written: a drafter that llama.cpp needs as a GGUF is not exported here."""
    if engine.name == "llama-cpp" and drafter.layout != GGUF:
        try:
            return replace(side, refusal=gguf_files.refusal(drafter.path, target.path))
        except ImportError:  # the package gguf is an extra
            return side
    if wrong_form(engine.name, target, drafter) is not None:
        return side
    if engine.name == "llama-cpp" and target.layout != GGUF:  # the embedded one: its GGUF would be written
        return side
    options = EngineOptions(port=PORT, parallel=asked.rows, context=asked.context)
    try:
        return replace(side, command=str(engine.command(target.path, drafter.path, options)))
    except Dflash2Error as problem:
        return replace(side, refusal=str(problem))
