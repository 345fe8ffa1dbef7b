"""Signals that end a process, and how they are kept from coming at a bad moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def held_back() -> Iterator[None]:
    """`ENDS` that come meanwhile, and have a handler of Python's, are heard when this ends: what is begun is not lost sight of.

    In other threads than the main one nothing is to be done: Python runs no handler there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in ENDS if callable(signal.getsignal(number))}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for heard in came:
            signal.raise_signal(heard)
