"""Training documents: prompts with the responses that the target wrote to them."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash2_core.errors import Dflash2Error

FORMAT = "dflash2 documents 1"


@dataclass(frozen=True)
class Document:
    """tokens: the prompt and the response, EOS included if the target wrote it; prompt_length: how many are the prompt's."""

    tokens: list[int]
    prompt_length: int


@dataclass(frozen=True)
class Batch:
    """Documents side by side, padded on the right.

    tokens          [D, T] int64
    lengths         [D] int64, real tokens of each row
    prompt_lengths  [D] int64
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.tokens.to(device), self.lengths.to(device), self.prompt_lengths.to(device))


def collate(documents: Sequence[Document]) -> Batch:
    """Padding is id 0: under a causal target no real position sees it, and no block reaches it."""
    rows = [torch.tensor(document.tokens) for document in documents]
    return Batch(
        tokens=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        lengths=torch.tensor([len(row) for row in rows]),
        prompt_lengths=torch.tensor([document.prompt_length for document in documents]),
    )


def save_documents(documents: Sequence[Document], path: Path, origin: dict[str, str]) -> None:
    """origin: how they were made, kept with them (target, temperatures, seed ...)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "tokens": torch.tensor([token for document in documents for token in document.tokens], dtype=torch.int32),
        "lengths": torch.tensor([len(document.tokens) for document in documents]),
        "prompt_lengths": torch.tensor([document.prompt_length for document in documents]),
    }
    incoming = path.with_name(path.name + ".incoming")
    save_file(tensors, incoming, metadata={"format": FORMAT, "origin": json.dumps(origin, sort_keys=True)})
    os.replace(incoming, path)


def digest_of(documents: Sequence[Document]) -> str:
    """The same for the same documents in the same order, and only for those."""
    texts = json.dumps([(document.prompt_length, document.tokens) for document in documents])
    return hashlib.sha256(texts.encode()).hexdigest()


def load_documents(path: Path) -> tuple[list[Document], dict[str, str]]:
    """The documents and their origin; Dflash2Error if the file is not one of `save_documents`."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise Dflash2Error(f"{path} is not a file of training documents: expected the format {FORMAT!r}")
            tensors = {name: file.get_tensor(name) for name in ("tokens", "lengths", "prompt_lengths")}
    except (OSError, SafetensorError) as error:
        raise Dflash2Error(f"the documents in {path} could not be read: {error}") from error
    rows = tensors["tokens"].split(tensors["lengths"].tolist())
    prompt_lengths = tensors["prompt_lengths"].tolist()
    documents = [Document(row.tolist(), length) for row, length in zip(rows, prompt_lengths, strict=True)]
    return documents, json.loads(metadata["origin"])
