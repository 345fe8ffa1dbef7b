"""Ends an engine whose owner is gone: a script of its own, which imports nothing but Python's own modules.

Argument: the seconds that an engine has to end by itself. Standard input is a pipe that the owner alone holds: it writes there
a line with the number of the engine's process, which leads a group of its own; what follows says that the engine has ended.
Once the owner is gone, the pipe ends. A group whose leader has ended is ended at once, while its number still is its own.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

OWNER = 0


def main(seconds: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    line, _, more = os.read(OWNER, 64).partition(b"\n")
    if not line or more:
        return
    with suppress(ProcessLookupError):
        leader = int(line)
        process = os.pidfd_open(leader) if hasattr(os, "pidfd_open") else None  # readable once it has ended, a zombie's too
        watched = [OWNER] if process is None else [OWNER, process]
        if OWNER in select.select(watched, [], [])[0]:
            if os.read(OWNER, 1):
                return
            os.kill(leader, signal.SIGTERM)
            _wait(leader, process, seconds)
        os.killpg(leader, signal.SIGKILL)


def _wait(leader: int, process: int | None, seconds: float) -> None:
    if process is not None:
        select.select([process], [], [], seconds)
        return
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        os.kill(leader, 0)
        time.sleep(0.05)


if __name__ == "__main__":
    main(float(sys.argv[1]))
