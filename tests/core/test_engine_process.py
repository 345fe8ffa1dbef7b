"""An engine is never left behind: by a signal at whatever moment, nor by the sudden death of who started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash2_core import engine_process
from dflash2_core.ending import held_back
from dflash2_core.engine_process import EngineProcess
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError
from dflash2_core.server_process import ServerProcess
from tests.engines.signals import ENDS, heard

SOON = 30.0
ENGINE = "import os, pathlib, signal, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + ENGINE
WITH_A_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ENGINE!r}, sys.argv[2]]); " + ENGINE
BETWEEN = "|||"
OWNER = f"""
import sys, time
from dflash2_core import engine_process
from dflash2_core.engines import Command
engine_process.TO_END = float(sys.argv[1])
engines = [engine_process.EngineProcess(Command(argv=tuple(argv.split({BETWEEN!r})))) for argv in sys.argv[2:]]
print("begun", flush=True)
time.sleep(600)
"""
NOT_COUNTING = """
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans are its own, and it counts none
subprocess.run([sys.executable, '-c', *sys.argv[1:]])
time.sleep(600)
"""


def of_python(program: str, *arguments: str | Path) -> Command:
    return Command(argv=(sys.executable, "-c", program, *map(str, arguments)))


def soon(happened: Callable[[], bool], within: float = SOON) -> bool:
    deadline = time.monotonic() + within
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


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def owners() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Killed at the end, and with each what it started."""
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for owner in begun:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()


def begin(argv: list[str], owners: list["subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
    """Once it says that its engines have begun."""
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE)
    owners.append(owner)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"begun\n"
    return owner


@pytest.mark.parametrize("program", [WITH_A_CHILD, STUBBORN])
def test_engines_end_when_who_started_them_is_killed(
    program: str, tmp_path: Path, owners: list["subprocess.Popen[bytes]"]
) -> None:
    """Two at once, each with a watcher; and nobody keeps open what the owner printed to."""
    files = [[tmp_path / f"{engine}-{name}" for name in ("leader", "child")] for engine in "ab"]
    commands = [BETWEEN.join(of_python(program, *each).argv) for each in files]
    owner = begin([sys.executable, "-c", OWNER, "1", *commands], owners)
    begun = [number_in(file) for each in files for file in each[: 2 if program == WITH_A_CHILD else 1]]
    assert all(map(runs, begun))
    owner.kill()
    assert owner.communicate()[0] == b""
    assert soon(lambda: not any(map(runs, begun)))


def test_an_engine_that_nobody_counts_keeps_nothing_of_its_group(
    tmp_path: Path, owners: list["subprocess.Popen[bytes]"]
) -> None:
    """In a container whose first process does not wait for orphans the leader stays as a zombie: it has ended all the same."""
    leader, child = tmp_path / "leader", tmp_path / "child"
    owner = f"import os; open({str(tmp_path / 'owner')!r}, 'w').write(str(os.getpid()))\n{OWNER}"
    command = BETWEEN.join(of_python(WITH_A_CHILD, leader, child).argv)
    begin([sys.executable, "-c", NOT_COUNTING, owner, str(4 * SOON), command], owners)
    begun = [number_in(leader), number_in(child)]
    os.kill(number_in(tmp_path / "owner"), signal.SIGKILL)
    assert soon(lambda: not any(map(runs, begun)))
    assert Path(f"/proc/{begun[0]}").exists(), "the leader was counted, so this shows nothing"


def test_its_end_is_the_end_of_what_it_started_and_of_its_watcher(tmp_path: Path) -> None:
    before = children()
    process = EngineProcess(of_python(WITH_A_CHILD, tmp_path / "engine", tmp_path / "child"))
    begun = [number_in(tmp_path / "engine"), number_in(tmp_path / "child")]
    assert len(children() - before) == 2
    process.end()
    process.end()
    assert process.returncode == -signal.SIGTERM
    assert soon(lambda: not any(map(runs, begun)))
    assert children() <= before


def test_an_engine_that_ends_by_itself_takes_its_group_with_it(tmp_path: Path) -> None:
    """Whether or not anybody asks."""
    process = EngineProcess(of_python(WITH_A_CHILD, tmp_path / "engine", tmp_path / "child"))
    begun = [number_in(tmp_path / "engine"), number_in(tmp_path / "child")]
    os.kill(begun[0], signal.SIGKILL)
    assert soon(lambda: not any(map(runs, begun)))
    process.end_group()
    assert process.returncode == -signal.SIGKILL


def test_a_second_signal_while_it_ends_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "TO_END", 10 * SOON)

    def again(_: int, __: Any) -> None:
        raise KeyboardInterrupt

    process = EngineProcess(of_python(STUBBORN, tmp_path / "engine"))
    begun = number_in(tmp_path / "engine")
    with heard():
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            process.end()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert not runs(begun)


def test_one_that_cannot_be_run_or_watched_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    with pytest.raises(EngineError, match="none cannot be run: No such file or directory"):
        EngineProcess(Command(argv=(str(tmp_path / "none"),)))
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(EngineError, match=r"no Python \(None\) watches over the engine"):
        EngineProcess(Command(argv=("sleep", "600")))
    assert children() <= before


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
        signal.signal(number, ended)
        with pytest.raises(KeyboardInterrupt):
            ServerProcess(of_python(ENGINE, tmp_path / "engine"), EngineOptions(log=tmp_path / "log"), name="engine")
    assert len(begun) == 1
    assert not any(map(runs, begun))


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


def test_each_signal_is_heard_though_one_before_it_raises() -> None:
    came: list[int] = []

    def raising(number: int, _: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    with heard():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, raising)
        held = held_back()
        held.__enter__()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert came == []
        with pytest.raises(KeyboardInterrupt):
            held.__exit__(None, None, None)
    assert came == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("last", range(len(ENDS)))
def test_a_signal_while_handlers_are_put_back_makes_deaf_to_none(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the handler `last` is back, and raises."""
    came: list[int] = []
    put = signal.signal

    def raising(number: int, _: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    with heard():
        for number in ENDS:
            put(number, raising)

        def torn(number: int, handler: Any) -> Any:
            before = put(number, handler)
            if handler is raising and number == ENDS[last]:
                monkeypatch.setattr(signal, "signal", put)
                signal.raise_signal(number)
            return before

        with pytest.raises(KeyboardInterrupt), held_back():
            monkeypatch.setattr(signal, "signal", torn)
        for number in ENDS:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert came == [ENDS[last], *ENDS]
