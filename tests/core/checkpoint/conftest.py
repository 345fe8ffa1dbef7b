from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash2_core.checkpoint import tensor_shapes, write_checkpoint
from dflash2_core.config import DrafterConfig
from tests.core.toys import drafter_config


@pytest.fixture
def config() -> DrafterConfig:
    return drafter_config(layer_windows=(4, 4))


@pytest.fixture
def weights(config: DrafterConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in tensor_shapes(config).items()}


@pytest.fixture
def folder(tmp_path: Path, config: DrafterConfig, weights: dict[str, Tensor]) -> Path:
    """A sound checkpoint."""
    write_checkpoint(config, weights, tmp_path / "drafter")
    return tmp_path / "drafter"
