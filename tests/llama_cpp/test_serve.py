"""`dflash2 serve`: prints the very command it runs, runs it until it is ended, and says in a sentence why it cannot."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_core.server_process import NO_PROXY
from tests.engines.signals import ENDS, heard
from tests.llama_cpp.spoiling import rebuilt

SERVE = [sys.executable, "-m", "dflash2_core.cli", "serve"]
DEADLINE = 300


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*SERVE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)


@contextmanager
def in_the_foreground(
    *arguments: str | Path, log: Path, ignoring: Sequence[signal.Signals] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        with heard():
            for number in ignoring:
                signal.signal(number, signal.SIG_IGN)
            process = subprocess.Popen([*SERVE, *map(str, arguments)], stdout=out, stderr=out)
        try:
            yield process
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.terminate()  # and with it the engine
                process.wait(120)
            process.kill()
            process.wait()


def until_it_answers(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            code = process.wait(0.1)
        except subprocess.TimeoutExpired:
            try:
                with NO_PROXY.open(f"{url}/health", timeout=5) as answer:
                    assert answer.status == 200
                    return
            except OSError:
                continue
        raise AssertionError(f"it ended with code {code}")
    raise AssertionError("it does not answer")


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


@pytest.mark.parametrize("number", ENDS)
def test_it_serves_a_folder_until_it_is_ended(number: signal.Signals, files: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    arguments = [files / "target.gguf", tiny_pair().drafter, "--port", str(port), "--cache", tmp_path, "--", "-t", "1"]
    with in_the_foreground(*arguments, log=log) as process:
        until_it_answers(process, f"http://127.0.0.1:{port}")
        printed, children = log.read_text().splitlines()[0], children_of(process.pid)
        ran = [Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[:-1] for child in children]
        assert [os.fsdecode(part) for part in ran[1]] == shlex.split(printed)  # behind who watches it
        process.send_signal(number)
        assert process.wait(120) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert "drafts the most probable path at every temperature" in log.read_text()


def test_told_again_and_again_it_ends_as_it_would_have(files: Path, tmp_path: Path) -> None:
    """A second signal while the engine ends, one while this process does."""
    port, log = free_port(), tmp_path / "log"
    with in_the_foreground(files / "target.gguf", "--port", str(port), "--", "-t", "1", log=log) as process:
        until_it_answers(process, f"http://127.0.0.1:{port}")
        for _ in range(40):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.wait(120) == 0
    assert "Traceback" not in log.read_text()
    assert "KeyboardInterrupt" not in log.read_text()


def test_what_was_to_be_ignored_is_ignored(files: Path, tmp_path: Path) -> None:
    """As `nohup` starts it."""
    port, log = free_port(), tmp_path / "log"
    arguments = [files / "target.gguf", "--port", str(port), "--", "-t", "1"]
    with in_the_foreground(*arguments, log=log, ignoring=[signal.SIGHUP]) as process:
        until_it_answers(process, f"http://127.0.0.1:{port}")
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        until_it_answers(process, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("number", ENDS)
def test_a_verification_that_is_ended_leaves_no_engine_behind(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dflash2_core.cli", "verify", "--engine", "llama-cpp", "--per-kind", "2"]
    with (tmp_path / "log").open("wb") as out, heard():
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)})
    deadline = time.monotonic() + DEADLINE
    while not (engines := [child for child in children_of(process.pid) if is_an_engine(child)]):
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(120) == 128 + number
    assert not any(is_an_engine(child) for child in engines)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_killed_at_once_it_leaves_no_engine_behind(files: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with in_the_foreground(files / "target.gguf", "--port", str(port), "--", "-t", "1", log=log) as process:
        until_it_answers(process, f"http://127.0.0.1:{port}")
        children = children_of(process.pid)
        assert any(map(is_an_engine, children))
        process.kill()
        process.wait()
        deadline = time.monotonic() + DEADLINE
        while any(map(is_an_engine, children)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_an_engine(pid: int) -> bool:
    try:
        return b"llama-server\0-m" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_dry_run_prints_the_command_and_starts_nothing(files: Path) -> None:
    done = run(files / "target.gguf", files / "bf16.gguf", "--dry-run", "--parallel", "4", "--context", "512", "--drafts", "5")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert "--port 8080" in line
    assert "-np 4 -c 2048" in line
    assert line.split()[0].endswith("llama-server")
    assert "--spec-draft-n-max 5" in line


def test_a_target_alone_takes_arguments_of_the_engine_too(files: Path) -> None:
    done = run(files / "target.gguf", "--dry-run", "--", "-t", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" -t 3\n")
    assert "-md" not in done.stdout


def test_a_pair_that_does_not_fit_ends_it_with_2_and_a_sentence(files: Path, tmp_path: Path) -> None:
    broken = rebuilt(files / "f32.gguf", tmp_path / "broken.gguf", without=["dflash.target_layers"])
    done = run(files / "target.gguf", broken, "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dflash2: ")
    assert "dflash.target_layers is missing" in done.stderr


def test_an_engine_that_ends_by_itself_ends_it_with_2(files: Path) -> None:
    done = run(files / "target.gguf", files / "bf16.gguf", "--port", "0", "--", "--no-such-option")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "dflash2: llama-server ended with code 1; what it said stands above"


def test_an_unknown_engine_is_a_sentence(files: Path) -> None:
    done = run(files / "target.gguf", files / "bf16.gguf", "--engine", "other")
    assert done.returncode == 2
    assert "there is no adapter for the engine 'other'" in done.stderr
