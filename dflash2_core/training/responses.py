"""The documents of a run: regenerated once, then read from a file."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash2_core.errors import Dflash2Error
from dflash2_core.training.documents import Document, load_documents, save_documents
from dflash2_core.training.prompts import read_prompts
from dflash2_core.training.regenerate import regenerate
from dflash2_core.transformers_engine.target import Target

SAMPLED_WEIGHTS = 1024  # of each tensor, for a target's fingerprint


@dataclass(frozen=True, kw_only=True)
class Responses:
    """How the target answers the prompts of a file."""

    prompts: Path
    temperatures: tuple[float, ...]
    max_new_tokens: int
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 <= t < math.inf for t in self.temperatures):
            raise Dflash2Error(f"the temperatures are {self.temperatures}; each must be finite and at least 0 (0 is greedy)")
        if self.max_new_tokens < 2:
            raise Dflash2Error(f"max_new_tokens is {self.max_new_tokens}; a response needs at least 2 to hold a draft")


def documents_for(target: Target, responses: Responses, kept_in: Path, into: list[Document]) -> Iterator[float]:
    """Fills `into` with the documents, yielding the share done; afterwards they stand in the file `kept_in`.

    A file of responses to the same prompts, by the same target, asked in the same way, is read instead.
    Raises Dflash2Error if the file holds other responses: they may be another run's.
    """
    prompts = read_prompts(responses.prompts, target.tokenizer)
    origin = {
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
        "target": fingerprint(target),
        "temperatures": str(responses.temperatures),
        "max_new_tokens": str(responses.max_new_tokens),
        "batch_size": str(responses.batch_size),
        "seed": str(responses.seed),
    }
    if kept_in.is_file():
        kept, theirs = load_documents(kept_in)
        if others := [name for name in origin if theirs.get(name) != origin[name]]:
            raise Dflash2Error(
                f"{kept_in} holds responses that differ from those asked for in {', '.join(others)}: name another folder for "
                "them, or remove the file"
            )
        into += kept
        yield 1.0
        return
    for document in regenerate(
        target,
        prompts,
        temperatures=responses.temperatures,
        max_new_tokens=responses.max_new_tokens,
        batch_size=responses.batch_size,
        seed=responses.seed,
    ):
        into.append(document)
        yield len(into) / len(prompts)
    save_documents(into, kept_in, origin)


@torch.no_grad()
def fingerprint(target: Target) -> str:
    """Tells targets apart by their weights, of which it reads some of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in target.model.state_dict().items():
        flat = tensor.flatten()
        some = flat[:: max(1, len(flat) // SAMPLED_WEIGHTS)].double().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()
