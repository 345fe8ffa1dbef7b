import pytest

from dflash2_core.training.documents import Document
from dflash2_core.training.regenerate import regenerate
from dflash2_core.transformers_engine import Target
from tests.core.toys import toy_target


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target()


@pytest.fixture(scope="module")
def documents(target: Target) -> list[Document]:
    """What the toy target wrote greedily to twelve prompts of three lengths."""
    prompts = [[(7 * i + j) % 30 for j in range(3 + i % 3)] for i in range(12)]
    return list(regenerate(target, prompts, temperatures=[0.0], max_new_tokens=24, batch_size=4, seed=0))
