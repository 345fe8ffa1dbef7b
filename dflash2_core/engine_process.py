"""An engine as a process that does not outlive the one which started it, however that one ends."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from dflash2_core.engines import Command
from dflash2_core.errors import EngineError

TO_END = 20.0
"""Seconds that an engine has to end by itself once it was asked to."""
WATCHER = Path(__file__).with_name("engine_watcher.py")


class EngineProcess(subprocess.Popen[bytes]):
    """In a process group of its own, with a watcher that ends the group when this process is gone, by SIGKILL too.

    A signal whose handler raises must be held back while one is made (`ending.held_back`), or the caller never hears of it.
    """

    def __init__(self, command: Command, log: IO[bytes] | None = None) -> None:
        """log: where it prints; None: where this process does. EngineError where it cannot be run."""
        self._watcher = _watcher()
        try:
            super().__init__(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(command.env),
                process_group=0,
            )
            self._say(f"{self.pid}\n")
        except BaseException as problem:
            if getattr(self, "pid", None) is not None and self.returncode is None:
                self.kill_group()
            self._dismiss()
            if isinstance(problem, OSError):
                raise EngineError(f"{command.argv[0]} cannot be run: {problem.strerror or problem}") from None
            raise

    def end(self) -> None:
        """Asks it to end, and ends its group when it has, or has not in time; nothing happens where that was done before."""
        try:
            if self.poll() is None:
                self.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.wait(TO_END)
        finally:  # a signal while it waits ends it at once
            self.end_group()

    def end_group(self) -> None:
        """At once, and waits for it; nothing happens where that was done before."""
        if not self._is_watched:
            return
        self.kill_group()
        self.wait()
        self._say(".")
        self._dismiss()

    def kill_group(self) -> None:
        """At once, and waits for nothing."""
        with suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def _is_watched(self) -> bool:
        assert self._watcher.stdin is not None
        return not self._watcher.stdin.closed

    def _say(self, words: str) -> None:
        assert self._watcher.stdin is not None
        with suppress(BrokenPipeError):  # somebody ended the watcher, or the engine has ended and it with it
            self._watcher.stdin.write(words.encode())

    def _dismiss(self) -> None:
        """Closes the pipe: what was not said to have ended, ends."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


def _watcher() -> "subprocess.Popen[bytes]":
    """It has no part in what this process prints: who reads that is told of its end when it ends."""
    command, nowhere = [sys.executable, "-I", "-S", str(WATCHER), str(TO_END)], subprocess.DEVNULL
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, bufsize=0, start_new_session=True
        )
    except (OSError, TypeError) as problem:  # TypeError: a program around Python, which has no sys.executable
        raise EngineError(f"no Python ({sys.executable}) watches over the engine: {problem}") from None
