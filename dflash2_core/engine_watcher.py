"""Ends an engine whose owner is gone: a script of its own, which imports nothing but Python's own modules.

Arguments: the engine's process, which leads a group of its own, and the seconds that it has to end by itself. Standard input is
a pipe that the owner alone holds: what it writes says that the engine has ended; once it is gone, the pipe ends unwritten.
"""

import os
import signal
import sys
import time
from contextlib import suppress


def main(leader: int, seconds: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1):
        return
    with suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            os.kill(leader, 0)
            time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
