"""Every engine really running. Nothing is skipped: without the environments that `ci/` makes these tests fail."""

from collections.abc import Iterator

import pytest

from tests.cross_engine.running import ENGINES, Running


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("engines")) as servers:
        yield servers


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
