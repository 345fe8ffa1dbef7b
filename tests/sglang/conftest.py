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
from tests.sglang.asking import Answer, ask_at_the_limit, ask_cases, ask_sampled
from tests.sglang.mutants import plugged
from tests.sglang.servers import PYTHON, ROOT, running


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
def drafted(plain: Told, logs: Path) -> Told:
    """DFLASH as SGLang starts it: overlap, radix cache, pages of one slot. After the plain server has gone."""
    log = logs / "drafted.log"
    with running(log, drafter=tiny_pair().drafter) as server:
        cases = ask_at_the_limit(server) | ask_cases(server) | ask_sampled(server)
        return Told(cases, driven(server.base_url), log.read_text())


@pytest.fixture(scope="session")
def paged(drafted: Told, logs: Path) -> Iterator[SglangServer]:
    """DFLASH2, pages of sixteen slots, no overlap; a mutant takes over when its name is written (see `mutants.py`)."""
    with running(
        logs / "paged.log",
        *("--page-size", "16", "--disable-overlap-schedule"),
        drafter=tiny_pair().drafter,
        algorithm="DFLASH2",
        environment=plugged(logs),
    ) as server:
        yield server


def driven(base_url: str) -> dict[str, Any]:
    """What the openai client, which SGLang brings, sees there."""
    driver = ROOT / "tests/engines/openai_driver.py"
    done = subprocess.run([PYTHON, driver, base_url], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers
