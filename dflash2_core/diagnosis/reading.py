"""Folders as facts: a target's and a drafter's, each as far as it can be read. Nothing here is judged."""

import json
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

from dflash2_core.checkpoint.examination import look, stated
from dflash2_core.checkpoint.files import CONFIG, is_gguf
from dflash2_core.checkpoint.header import is_regular
from dflash2_core.checkpoint.reading import DTYPES, read_tensor, survey
from dflash2_core.compatibility import TargetFacts
from dflash2_core.config.documents import read_object
from dflash2_core.config.drafter import is_drafter
from dflash2_core.config.reading import placed
from dflash2_core.diagnosis import gguf_files
from dflash2_core.diagnosis.facts import DrafterSide, TargetSide, Tokenizer
from dflash2_core.errors import CheckpointError, Dflash2Error
from dflash2_core.manifest import NAME, Manifest, differences, has_manifest

MOST_BYTES = 128 * 2**20
"""Of a tokenizer.json."""


def read_target(path: Path) -> TargetSide:
    """The target at `path`, a folder or a GGUF; CheckpointError where nothing is there."""
    _require_there(path, "target")
    if is_gguf(path):
        return gguf_files.read_target(path)
    try:
        document = read_object(path / CONFIG, CheckpointError)
    except CheckpointError as problem:
        return TargetSide(path=path, problems=(str(problem),))
    if is_drafter(document):
        return TargetSide(path=path, problems=("this is a drafter's folder: expected the target's",))
    text = document.get("text_config", document)
    text = text if isinstance(text, Mapping) else {}
    names = document.get("architectures")
    length = text.get("max_position_embeddings")
    dtype = text.get("dtype") or text.get("torch_dtype") or document.get("dtype") or document.get("torch_dtype")
    sizes, problems = None, []
    try:
        sizes = TargetFacts.of_config(document, folder=path)
    except CheckpointError as problem:
        problems.append(str(problem))
    return TargetSide(
        path=path,
        sizes=sizes,
        architecture=names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None,
        dtype=dtype if isinstance(dtype, str) else None,
        context_length=length if isinstance(length, int) else None,
        tokenizer=read_tokenizer(path),
        chat_template=read_chat_template(path),
        problems=tuple(problems),
    )


def read_drafter(path: Path) -> DrafterSide:
    """The drafter at `path`, a folder or a GGUF, every weight looked at; CheckpointError where nothing is there."""
    _require_there(path, "drafter")
    if is_gguf(path):
        return gguf_files.read_drafter(path)
    try:
        found = survey(path)
    except Dflash2Error as problem:
        return DrafterSide(path=path, problems=(str(problem),))
    by_dtype: dict[str, int] = {}
    weights, problems = {}, [*found.config_problems, *found.problems]
    for name, entry in found.entries.items():
        dtype, count = entry.stored.dtype.lower(), prod(entry.stored.shape)
        by_dtype[dtype] = by_dtype.get(dtype, 0) + count
        if entry.stored.dtype in DTYPES:
            try:
                weights[name] = look(read_tensor(entry))
            except CheckpointError as problem:
                problems.append(str(problem))
    entries = found.entries.values()
    return DrafterSide(
        path=path,
        layout=found.layout,
        config=None if found.config_problems else found.config,
        document=read_object(path / CONFIG, CheckpointError),
        num_bytes=sum(entry.stored.end - entry.stored.begin for entry in entries),
        num_parameters=sum(by_dtype.values()),
        dtypes=dict(sorted(by_dtype.items(), key=lambda item: -item[1])),
        weights=weights,
        own=tuple(name for name in ("embed_tokens.weight", "lm_head.weight", "mask_embedding") if name in found.entries),
        licences=_licences(path),
        base_model=stated(path, "base_model"),
        tokenizer=read_tokenizer(path),
        chat_template=read_chat_template(path),
        manifest=_manifest(path),
        problems=tuple(problems),
    )


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """tokenizer.json of `folder`, its pieces and merges; None where there is none, or none that can be read."""
    path = folder / "tokenizer.json"
    try:
        if not is_regular(path) or path.stat().st_size > MOST_BYTES:
            return None
        document = json.loads(path.read_bytes())
        model, added = document["model"], document.get("added_tokens") or []
        vocabulary = model["vocab"]
        pairs = ((index, piece) for piece, index in vocabulary.items()) if isinstance(vocabulary, dict) else None
        tokens: dict[int, str] = dict(pairs) if pairs is not None else {i: piece for i, (piece, _) in enumerate(vocabulary)}
        tokens |= {token["id"]: token["content"] for token in added}
        merges = model.get("merges")
        joined = None if merges is None else tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Tokenizer(tokens=tokens, merges=joined)


def read_chat_template(folder: Path) -> str | None:
    """Of chat_template.jinja, else of tokenizer_config.json; of several the one called default."""
    file = folder / "chat_template.jinja"
    try:
        if is_regular(file):
            return file.read_text(encoding="utf-8", errors="replace")
        if not is_regular(folder / "tokenizer_config.json"):
            return None
        found = read_object(folder / "tokenizer_config.json", CheckpointError).get("chat_template")
    except (OSError, CheckpointError):
        return None
    if isinstance(found, list):
        named = (each for each in found if isinstance(each, Mapping) and each.get("name") == "default")
        found = next((each.get("template") for each in named), None)
    return found if isinstance(found, str) else None


def _require_there(path: Path, what: str) -> None:
    if not path.exists():
        raise CheckpointError(f"{placed(path)} does not exist: expected the {what}'s folder, or its GGUF")


def _licences(folder: Path) -> dict[str, str]:
    found = {"README.md": stated(folder, "license")}
    if has_manifest(folder):
        with suppress(CheckpointError):  # `_manifest` says why
            found[NAME] = Manifest.read(folder).licence
    return {place: licence for place, licence in found.items() if licence}


def _manifest(folder: Path) -> tuple[str, ...] | None:
    if not has_manifest(folder):
        return None
    try:
        return tuple(differences(folder))
    except CheckpointError as problem:
        return (str(problem),)
