"""An engine is never left behind: by a signal at whatever moment, nor by the sudden death of who started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash2_core.ending import held_back
from dflash2_core.engine_process import EngineProcess
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError
from dflash2_core.server_process import ServerProcess
from tests.engines.signals import heard

SOON = 30.0
ENGINE = "import os, pathlib, signal, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + ENGINE
WITH_A_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ENGINE!r}, sys.argv[2]]); " + ENGINE
OWNER = """
import pathlib, sys, time
from dflash2_core import engine_process
from dflash2_core.engines import Command
engine_process.TO_END = 1.0
engine = engine_process.EngineProcess(Command(argv=tuple(sys.argv[1:])))
time.sleep(600)
"""


def of_python(program: str, *arguments: str | Path) -> Command:
    return Command(argv=(sys.executable, "-c", program, *map(str, arguments)))


def soon(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def number_in(file: Path) -> int:
    assert soon(lambda: file.exists() and bool(file.read_text()))
    return int(file.read_text())


def runs(pid: int) -> bool:
    """A zombie, which waits for a parent that counts it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("program", [WITH_A_CHILD, STUBBORN])
def test_it_ends_when_who_started_it_is_killed(program: str, tmp_path: Path) -> None:
    files = [tmp_path / "engine", tmp_path / "child"]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *of_python(program, *files).argv])
    begun = [number_in(file) for file in files[: 2 if program == WITH_A_CHILD else 1]]
    assert all(map(runs, begun))
    owner.kill()
    owner.wait()
    assert soon(lambda: not any(map(runs, begun)))


def test_its_end_is_the_end_of_what_it_started_and_of_its_watcher(tmp_path: Path) -> None:
    before = children()
    process = EngineProcess(of_python(WITH_A_CHILD, tmp_path / "engine", tmp_path / "child"))
    begun = [number_in(tmp_path / "engine"), number_in(tmp_path / "child")]
    assert len(children() - before) == 2
    process.end()
    process.end()
    assert process.returncode == -signal.SIGTERM
    assert soon(lambda: not any(map(runs, begun)))
    assert children() == before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_one_that_cannot_be_run_is_a_sentence(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(EngineError, match="none cannot be run: No such file or directory"):
        EngineProcess(Command(argv=(str(tmp_path / "none"),)))
    assert children() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_the_start_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine runs already, and nobody has heard of it."""
    begun = []
    start = EngineProcess.__init__

    def interrupted(self: EngineProcess, *arguments: Any) -> None:
        start(self, *arguments)
        begun.append(self.pid)
        signal.raise_signal(number)

    def ended(_: int, __: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineProcess, "__init__", interrupted)
    with heard():
        before = signal.signal(number, ended)
        try:
            with pytest.raises(KeyboardInterrupt):
                ServerProcess(of_python(ENGINE, tmp_path / "engine"), EngineOptions(log=tmp_path / "log"), name="engine")
        finally:
            signal.signal(number, before)
    assert not any(map(runs, begun))
    assert len(begun) == 1


def test_signals_are_held_back_and_then_heard_in_order() -> None:
    came: list[int] = []
    with heard():
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with held_back():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.raise_signal(number)
            assert came == []
        assert came == [signal.SIGTERM, signal.SIGINT]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
    assert came == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]
