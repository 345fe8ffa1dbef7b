"""Real servers of SGLang, float32, of the environment that `ci/sglang.sh` built. Nothing is skipped: without it tests fail."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_sglang import Sglang
from dflash2_sglang.server import SglangServer
from tests.engines.grouping import Together
from tests.sglang.asking import Answer, ask_at_the_limit, ask_cases, ask_sampled
from tests.sglang.mutants import RETRACTING, mutated, plugged
from tests.sglang.servers import PYTHON, ROOT, running
from tests.sglang.serving import Served, serve_and_end

ASK_THE_SAME = {
    "test_greedy.py",
    "test_openai.py",
    "test_options.py",
    "test_penalties.py",
    "test_pressure.py",
    "test_sampled.py",
}
"""Files that compare servers with each other."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log, ASK_THE_SAME)


@pytest.fixture(scope="session")
def engine() -> Sglang:
    return Sglang(PYTHON)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@dataclass(frozen=True)
class Told:
    """What one server answered. cases: by name; client: what the openai client saw; log: what the server printed."""

    cases: dict[str, list[Answer]]
    client: dict[str, Any]
    log: str


@pytest.fixture(scope="session")
def plain(logs: Path) -> Told:
    """Plain SGLang. Without overlap: with it, SGLang's own penalties are a token late (UPSTREAM.md)."""
    log = logs / "plain.log"
    with running(log, "--disable-overlap-schedule") as server:
        return Told(ask_at_the_limit(server) | ask_cases(server), driven(server.base_url), log.read_text())


@pytest.fixture(scope="session")
def overlapped(plain: Told, logs: Path) -> Iterator[SglangServer]:
    """DFLASH: overlap, radix cache, pages of one slot, prompts read 32 ids at a time. After the plain server has gone."""
    with running(
        logs / "overlapped.log",
        *("--chunked-prefill-size", "32"),
        drafter=tiny_pair().drafter,
        environment=plugged(logs / "overlapped"),
    ) as server:
        yield server


@pytest.fixture(scope="session")
def drafted(overlapped: SglangServer) -> Told:
    """What it answered, undisturbed."""
    cases = ask_at_the_limit(overlapped) | ask_cases(overlapped) | ask_sampled(overlapped)
    return Told(cases, driven(overlapped.base_url), overlapped.log.read_text())


@pytest.fixture
def pressed(overlapped: SglangServer, drafted: Told, logs: Path) -> Iterator[SglangServer]:
    """The same server, its cache empty, retracting requests all the time."""
    overlapped.fetch("/flush_cache")
    with mutated(logs / "overlapped", RETRACTING):
        yield overlapped


@pytest.fixture(scope="session")
def paged(drafted: Told, logs: Path) -> Iterator[SglangServer]:
    """DFLASH2, pages of sixteen slots, no overlap; a mutant takes over when its name is written (see `mutants.py`)."""
    with running(
        logs / "paged.log",
        *("--page-size", "16", "--disable-overlap-schedule"),
        drafter=tiny_pair().drafter,
        algorithm="DFLASH2",
        environment=plugged(logs / "paged"),
    ) as server:
        yield server


@pytest.fixture(scope="session")
def served(logs: Path) -> Served:
    """`dflash2 serve` in bfloat16, from its start to its end."""
    return serve_and_end(logs / "served.log")


def driven(base_url: str) -> dict[str, Any]:
    """What the openai client, which SGLang brings, sees there."""
    driver = ROOT / "tests/engines/openai_driver.py"
    done = subprocess.run([PYTHON, driver, base_url], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers
