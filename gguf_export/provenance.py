"""`general.*`: what the file is and where its weights come from. The same drafter gives the same keys, wherever it lies."""

import hashlib
import re
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_VERSION

from dflash2_core.checkpoint import Checkpoint
from dflash2_core.checkpoint.examination import stated
from dflash2_core.checkpoint.files import CONFIG, INDEX
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError
from gguf_export.header import Key
from gguf_export.keys import key
from gguf_export.outtypes import FILE_TYPES
from gguf_export.target import Target

HUB = "https://huggingface.co/"
SOURCE_FILES, SOURCE_HASHES = "general.source.files", "general.source.sha256"


def general_keys(checkpoint: Checkpoint, target: Target, outtype: str) -> list[Key]:
    """The `general.*` keys but the architecture. Reads every file of the checkpoint for its hash."""
    base = stated(checkpoint.path, "base_model") or target.name
    kind = f"DFlash {checkpoint.config.version} drafter"
    hashes = source_hashes(checkpoint)
    values: dict[str, Any] = {
        "general.type": "model",
        "general.name": f"{kind} for {base}" if base else kind,
        "general.license": stated(checkpoint.path, "license"),
        "general.base_model.count": 1 if base else None,
        "general.base_model.0.name": base,
        "general.base_model.0.repo_url": f"{HUB}{base}" if base and re.fullmatch(r"[\w.-]+/[\w.-]+", base) else None,
        SOURCE_FILES: list(hashes),
        SOURCE_HASHES: list(hashes.values()),
        "general.quantization_version": GGML_QUANT_VERSION,
        "general.file_type": int(FILE_TYPES[outtype]),
    }
    return [key(name, value) for name, value in values.items() if value is not None]


def source_hashes(checkpoint: Checkpoint) -> dict[str, str]:
    """SHA-256 of config.json and of each weights file, by name: what `sha256sum` and a hub's file list show."""
    index = checkpoint.path / INDEX
    files = [checkpoint.path / CONFIG, *([index] if index.exists() else []), *checkpoint.files]
    return {file.name: _sha256(file) for file in files}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None
