"""The documents of a run: regenerated once, then read from the run's folder."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash2_core.training.documents import Document, load_documents, save_documents
from dflash2_core.training.prompts import read_prompts
from dflash2_core.training.regenerate import regenerate
from dflash2_core.transformers_engine.target import Target


@dataclass(frozen=True, kw_only=True)
class Responses:
    """How the target answers the prompts of a file."""

    prompts: Path
    temperatures: tuple[float, ...]
    max_new_tokens: int
    batch_size: int = 64
    seed: int = 0


def documents_for(target: Target, responses: Responses, kept_in: Path, into: list[Document]) -> Iterator[float]:
    """Fills `into` with the documents, yielding the share done; afterwards they stand in the file `kept_in`.

    A file made from the same prompts by the same target in the same way is read instead.
    """
    prompts = read_prompts(responses.prompts, target.tokenizer)
    origin = {name: str(value) for name, value in asdict(responses).items()}
    origin |= {"target": str(target.model.name_or_path), "num_prompts": str(len(prompts))}
    if kept_in.is_file():
        kept, their_origin = load_documents(kept_in)
        if their_origin == origin:
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
