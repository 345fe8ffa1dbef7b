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
        try:
            super().__init__(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(command.env),
                process_group=0,
            )
        except OSError as problem:
            raise EngineError(f"{command.argv[0]} cannot be run: {problem.strerror or problem}") from None
        try:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", WATCHER, str(self.pid), str(TO_END)], stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as problem:
            self.kill_group()
            self.wait()
            raise EngineError(f"{command.argv[0]} cannot be watched: {problem.strerror or problem}") from None

    def end(self) -> None:
        """Asks it to end, and ends its group when it has, or has not in time; nothing happens where that was done before."""
        if self.poll() is None:
            self.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.wait(TO_END)
        self.end_group()

    def end_group(self) -> None:
        """At once, and waits for it; nothing happens where that was done before."""
        assert self._watcher.stdin is not None
        if self._watcher.stdin.closed:
            return
        self.kill_group()
        self.wait()
        with suppress(BrokenPipeError):  # somebody ended the watcher
            self._watcher.stdin.write(b".")
            self._watcher.stdin.close()
        self._watcher.wait()

    def kill_group(self) -> None:
        """At once, and waits for nothing."""
        with suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(self.pid, signal.SIGKILL)
