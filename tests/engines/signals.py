"""Processes that hear the signals which a test sends, however the tests themselves were started."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def heard() -> Iterator[None]:
    """What is started meanwhile ignores none of `ENDS`: in the background, or under `nohup`, it would inherit that."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
