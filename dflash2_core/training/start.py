"""A new drafter, and parts of it that stay as they began."""

from collections.abc import Collection
from typing import Literal

import torch

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter import Drafter
from dflash2_core.errors import ConfigError
from dflash2_core.training.shape import rope_of
from dflash2_core.transformers_engine.target import Target

Part = Literal["selector", "convolution"]
PARTS: dict[str, tuple[str, ...]] = {"selector": ("candidate_selector.",), "convolution": ("attention_conv.", "mlp_conv.")}


def new_drafter(config: DrafterConfig, seed: int) -> Drafter:
    """Random weights, identity convolutions and a zero successor codebook: it drafts exactly as a DFlash 1 with its other
    weights would, and training takes it from there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Drafter(config)


@torch.no_grad()
def copy_from_target(drafter: Drafter, target: Target) -> None:
    """Begin with the target's last layers and final norm, and with features that are its last tap: the context's keys and
    values in the drafter's last layer are then those of a target layer. What DFlash 2 adds stays as it began.

    Raises ConfigError if the target's layers have other tensors than a drafter's, other sizes or another rope, or are fewer.
    """
    cannot = "the drafter cannot begin with the target's layers:"
    config, count = drafter.config, len(drafter.layers)
    if count > target.num_layers:
        raise ConfigError(f"{cannot} it has {count} and the target {target.num_layers}")
    if dict(config.rope_parameters) != rope_of(target.config):
        raise ConfigError(f"{cannot} its rope is {dict(config.rope_parameters)} and theirs {rope_of(target.config)}")
    H, weights = config.hidden_size, drafter.state_dict()
    copied = {f"layers.{i}.{name}": x for i in range(count) for name, x in target.layers[i - count].state_dict().items()}
    of_version_2 = ("attention_conv.", "mlp_conv.")
    wanted = [name for name in weights if name.startswith("layers.") and not any(part in name for part in of_version_2)]
    for name in sorted({*copied, *wanted}):
        theirs, ours = (tuple(x[name].shape) if name in x else "none" for x in (copied, weights))
        if theirs != ours:
            raise ConfigError(f"{cannot} {name} is {theirs} there and {ours} here")
    copied["norm.weight"] = target.model.get_decoder().norm.weight
    copied["hidden_norm.weight"] = target.layers[-1].get_parameter("input_layernorm.weight")
    copied["fc.weight"] = torch.eye(H, drafter.fc.in_features).roll(-H, dims=1)
    for name, tensor in copied.items():
        weights[name].copy_(tensor)


def freeze(drafter: Drafter, parts: Collection[Part]) -> None:
    """Keep these parts as they are: frozen from the start, the drafter has the rest of DFlash 2 only."""
    names = tuple(name for part in parts for name in PARTS[part])
    for name, parameter in drafter.named_parameters():
        if any(frozen in name for frozen in names):
            parameter.requires_grad_(False)
