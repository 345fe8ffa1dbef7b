"""The drafter that a speculative config names, read by the core: a folder, or a repository of a model hub."""

from functools import cache
from pathlib import Path
from typing import Any

from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.drafter import is_drafter
from dflash2_core.errors import ConfigError

ARCHITECTURE = "DFlash2DraftModel"
SECOND = "dflash2"


def claims_dflash2(document: dict[str, Any]) -> bool:
    """Whether a config.json says that it is a DFlash 2 drafter's, sound or not."""
    names = document.get("architectures")
    named = isinstance(names, list) and ARCHITECTURE in names
    return is_drafter(document) and (named or document.get("speculators_model_type") == SECOND)


def is_dflash2(speculative_config: Any) -> bool:
    """Of vLLM's SpeculativeConfig, or None."""
    if speculative_config is None or speculative_config.method != "dflash":
        return False
    draft = speculative_config.draft_model_config
    return draft is not None and ARCHITECTURE in (draft.architectures or [])


def document_of(model: str, revision: str | None) -> dict[str, Any]:
    """config.json of a folder or repository, {} if there is none: what it is, is not for this adapter to say then."""
    if Path(model).is_dir():
        try:
            return read_object(Path(model) / "config.json", ConfigError)
        except ConfigError:
            return {}
    from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

    found = get_hf_file_to_dict("config.json", model, revision)
    return found if isinstance(found, dict) else {}


@cache
def read_drafter(model: str, revision: str | None) -> DrafterConfig:
    """What the drafter is. A folder's tensors are all looked at; a repository's are when they are there (`require_weights`).

    Raises ConfigError or CheckpointError with everything that is wrong.
    """
    if Path(model).is_dir():
        return open_checkpoint(model).require_finite().config
    return DrafterConfig.from_dict(document_of(model, revision))


def require_weights(model: str, revision: str | None) -> None:
    """After vLLM has loaded `model`: raises CheckpointError where a tensor is missing, surplus or of another shape."""
    if Path(model).is_dir():
        return  # seen before the start
    from huggingface_hub import snapshot_download

    open_checkpoint(snapshot_download(model, revision=revision, local_files_only=True)).require_finite()
