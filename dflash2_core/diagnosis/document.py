"""A diagnosis as plain types, for `--json`: numbers and names; sentences stand in the findings alone."""

from typing import Any

from dflash2_core import __version__
from dflash2_core.config import DrafterConfig
from dflash2_core.diagnosis.examining import Diagnosis
from dflash2_core.diagnosis.facts import DrafterSide, TargetSide


def as_document(found: Diagnosis) -> dict[str, Any]:
    """What is not known, or was not asked for, is null."""
    return {
        "dflash2": __version__,
        "engines": [side.report.to_dict() | {"command": side.command} for side in found.engines],
        "target": None if found.target is None else _target(found.target),
        "drafter": None if found.drafter is None else _drafter(found.drafter),
        "block": {words.engine: {"said": words.count, "left_out": words.left_out} for words in found.blocks},
        "memory": None if found.memory is None else found.memory.to_dict(),
        "findings": [finding.to_dict() for finding in found.findings],
        "sound": found.sound,
    }


def _target(target: TargetSide) -> dict[str, Any]:
    sizes = target.sizes
    return {
        "path": str(target.path),
        "layout": target.layout,
        "architecture": target.architecture,
        "dtype": target.dtype,
        "hidden_size": None if sizes is None else sizes.hidden_size,
        "vocab_size": None if sizes is None else sizes.vocab_size,
        "num_layers": None if sizes is None else sizes.num_layers,
        "context_length": target.context_length,
        "tokenizer": target.tokenizer is not None,
        "chat_template": target.chat_template is not None,
    }


def _drafter(drafter: DrafterSide) -> dict[str, Any]:
    return {
        "path": str(drafter.path),
        "layout": drafter.layout,
        "num_parameters": drafter.num_parameters,
        "num_bytes": drafter.num_bytes,
        "parameters_by_dtype": dict(drafter.dtypes),
        "own_tensors": list(drafter.own),
        "licences": dict(drafter.licences),
        "base_model": drafter.base_model,
        "tokenizer": drafter.tokenizer is not None,
        "chat_template": drafter.chat_template is not None,
        "manifest": drafter.manifest is not None,
        "config": None if drafter.config is None else _config(drafter.config),
    }


def _config(config: DrafterConfig) -> dict[str, Any]:
    return {
        "version": config.version,
        "block_size": config.block_size,
        "num_drafts": config.num_drafts,
        "target_layer_ids": list(config.target_layer_ids),
        "num_target_layers": config.num_target_layers,
        "target_hidden_size": config.target_hidden_size,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "layer_windows": list(config.layer_windows),
        "layer_causal": list(config.layer_causal),
        "max_position_embeddings": config.max_position_embeddings,
    }
