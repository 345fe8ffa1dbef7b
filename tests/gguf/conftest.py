from pathlib import Path

import pytest

from tests.gguf.toys import saved, toy_drafter, write_folder, write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The toy target as GGUF."""
    return write_target(tmp_path / "target.gguf")


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    """The toy target as a Hugging Face folder."""
    return write_folder(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A sound drafter of the toy target's."""
    return saved(toy_drafter(layer_windows=(12, 12)), tmp_path / "drafter")
