"""GGUFs as facts. `gguf_export` reads them, which is found when one is asked for: the core works without it."""

from collections.abc import Callable
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from dflash2_core.checkpoint.examination import look
from dflash2_core.config import InvalidConfigError
from dflash2_core.config.shapes import optional_tensor_shapes
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, TargetSide, Tokenizer
from dflash2_core.errors import CheckpointError, CompatibilityError, Dflash2Error

TOKENS, MERGES, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"


def read_target(path: Path) -> TargetSide:
    """The target's GGUF as far as it can be read."""
    try:
        header = _of("header").read_header(path)
    except CheckpointError as problem:
        return TargetSide(path=path, layout=GGUF, problems=(str(problem),))
    if header.architecture == _of("names").ARCHITECTURE:
        return TargetSide(path=path, layout=GGUF, problems=("this is a drafter's GGUF: expected the target's",))
    problems, sizes = [], None
    try:
        sizes = _of("target").read_target(path).facts
    except Dflash2Error as problem:
        problems.append(str(problem))
    length, template = header.value(f"{header.architecture}.context_length"), header.value(TEMPLATE)
    return TargetSide(
        path=path,
        layout=GGUF,
        sizes=sizes,
        architecture=header.architecture,
        dtype=next(iter(_types(header)), None),
        context_length=length if isinstance(length, int) else None,
        tokenizer=_tokenizer(header),
        chat_template=template if isinstance(template, str) else None,
        problems=tuple(problems),
    )


def read_drafter(path: Path) -> DrafterSide:
    """The drafter's GGUF as far as it can be read, every weight looked at where its keys and tensors are whole."""
    reading, keys = _of("reading"), _of("keys")
    try:
        header = reading.drafter_header(path)
    except CheckpointError as problem:
        return DrafterSide(path=path, layout=GGUF, problems=(str(problem),))
    config, weights = None, {}
    problems: list[str] = []
    own: tuple[str, ...] = ()
    try:
        config = keys.read_config(header)
        problems += reading.tensor_problems(header, config)
        places = reading.places_of(header, config)
        own = tuple(name for name in optional_tensor_shapes(config) if name in places)
        if not problems:
            tensors = reading.Tensors(header.path, places)
            weights = {name: look(tensors[name]) for name in tensors}
    except InvalidConfigError as error:
        problems += error.problems
    except CheckpointError as problem:
        problems.append(str(problem))
    types = _types(header)
    licence, base, template = (header.value(name) for name in ("general.license", "general.base_model.0.name", TEMPLATE))
    return DrafterSide(
        path=path,
        layout=GGUF,
        config=config,
        num_bytes=sum(place.num_bytes for place in header.tensors.values()),
        num_parameters=sum(types.values()),
        dtypes=types,
        weights=weights,
        own=own,
        licences={"general.license": licence} if isinstance(licence, str) else {},
        base_model=base if isinstance(base, str) else None,
        tokenizer=_tokenizer(header),
        chat_template=template if isinstance(template, str) else None,
        problems=tuple(problems),
    )


def refusal(drafter: Path, target: Path) -> str | None:
    """Why the drafter in a folder could not be exported for that target, and so not be run by llama.cpp; None: it could."""
    from dflash2_core.checkpoint import open_checkpoint

    refuse: Callable[..., None] = _of("refusals").refuse_unfit
    try:
        refuse(open_checkpoint(drafter), _of("target").read_target(target))
    except (CheckpointError, CompatibilityError) as problem:
        return str(problem)
    return None


def _of(module: str) -> Any:
    return import_module(f"gguf_export.{module}")


def _types(header: Any) -> dict[str, int]:
    """Type -> parameters stored so, the most frequent first."""
    found: dict[str, int] = {}
    for place in header.tensors.values():
        name = place.kind.name.lower()
        found[name] = found.get(name, 0) + prod(place.shape)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _tokenizer(header: Any) -> Tokenizer | None:
    tokens, merges = header.value(TOKENS), header.value(MERGES)
    if not isinstance(tokens, list):
        return None
    pieces = {index: _text(token) for index, token in enumerate(tokens)}
    return Tokenizer(tokens=pieces, merges=tuple(map(_text, merges)) if isinstance(merges, list) else None)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
