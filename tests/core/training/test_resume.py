from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash2_core.errors import CheckpointError, Dflash2Error
from dflash2_core.training.documents import Document
from dflash2_core.training.loop import Settings, draw_documents, train
from dflash2_core.training.start import new_drafter
from dflash2_core.transformers_engine import Target
from tests.core.toys import drafter_config

SETTINGS = Settings(steps=8, documents=3, anchors=4, learning_rate=0.01, save_every=1)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(
    target: Target, documents: list[Document], tmp_path: Path, kind: str, keep: bool
) -> None:
    settings = replace(SETTINGS, optimizer=kind, keep_features=keep)  # type: ignore[arg-type]
    whole = new_drafter(drafter_config(), seed=0)
    losses = [record["total"] for record in train(whole, target, documents, [], settings)]

    first = new_drafter(drafter_config(), seed=0)
    run = train(first, target, documents, [], settings, tmp_path)
    interrupted = [next(run)["total"] for _ in range(3)]
    run.close()
    second = new_drafter(drafter_config(), seed=99)
    resumed = [record["total"] for record in train(second, target, documents, [], settings, tmp_path, resume=True)]

    assert interrupted + resumed == losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_nothing_of_a_run_is_pickled(target: Target, documents: list[Document], tmp_path: Path) -> None:
    list(train(new_drafter(drafter_config(), 0), target, documents, [], replace(SETTINGS, steps=1), tmp_path))
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".safetensors", ".json", ".jsonl"}


def test_a_run_that_is_not_there_cannot_be_resumed(target: Target, documents: list[Document], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        next(train(new_drafter(drafter_config(), 0), target, documents, [], SETTINGS, tmp_path, resume=True))


def test_every_epoch_goes_through_all_documents_once() -> None:
    documents = [Document([i], 1) for i in range(10)]
    drawn = [d.tokens[0] for step in range(5) for d in draw_documents(documents, step, 4, seed=0)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_a_run_has_one_length() -> None:
    with pytest.raises(Dflash2Error, match="steps or a number of minutes"):
        Settings(steps=3, minutes=2.0)
