"""A drafter's folder -> its GGUF in the cache; and the embedded target's.

The name of a file there says what went into it (checkpoint, tokenizer, type, this version of the project): one that has gone
stale is never found again, and may be deleted.
"""

import hashlib
import json
import os
from pathlib import Path

from dflash2_core import __version__
from dflash2_core.assets import is_embedded_target
from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.config.reading import placed
from dflash2_core.errors import EngineError
from gguf_export import export
from gguf_export.embedded import write_embedded_target
from gguf_export.provenance import source_hashes
from gguf_export.target import Target, read_target

DEFAULT_OUTTYPE = "bf16"


def default_cache() -> Path:
    """Of the user: `$XDG_CACHE_HOME/dflash2`, else `~/.cache/dflash2`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash2"


def exported(drafter: Path, target: Path, *, outtype: str | None, cache: Path | None) -> Path:
    """The GGUF of the checkpoint in `drafter` for the target's GGUF; written unless it is there already.

    Raises what `gguf_export.export` raises, EngineError for a cache that cannot be made.
    """
    folder, outtype = _made(cache), outtype or DEFAULT_OUTTYPE
    digest = _digest(drafter, read_target(target), outtype)
    path = folder / f"{drafter.resolve().name}-{outtype}-{digest[:12]}.gguf"
    if not path.exists():
        export(drafter, path, tokenizer_from=target, outtype=outtype)
    return path


def as_gguf(target: Path, *, cache: Path | None) -> Path:
    """The target as it is, but for the embedded pair's folder: its GGUF, written unless it is there already."""
    if not is_embedded_target(target):
        return target
    source = hashlib.sha256((target / "model.safetensors").read_bytes() + __version__.encode())
    path = _made(cache) / f"tiny-target-f32-{source.hexdigest()[:12]}.gguf"
    return path if path.exists() else write_embedded_target(path)


def _made(cache: Path | None) -> Path:
    folder = cache or default_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise EngineError(f"the cache {placed(folder)} cannot be made: {problem.strerror or problem}") from None
    return folder


def _digest(drafter: Path, target: Target, outtype: str) -> str:
    sources = source_hashes(open_checkpoint(drafter))
    parts = [__version__, outtype, sources, target.architecture, str(target.facts), target.mrope]
    whole = hashlib.sha256(json.dumps(parts).encode())
    for key in target.tokenizer:
        whole.update(repr((key.name, key.value)).encode())
    return whole.hexdigest()
