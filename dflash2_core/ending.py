"""Signals that end a process, and how they are kept from coming at a bad moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def held_back() -> Iterator[None]:
    """`ENDS` that come meanwhile, and have a handler of Python's, are heard when this ends: what is begun is not lost sight of.

    Each is heard, though a handler before it raises. In other threads than the main one nothing is to be done: Python runs no
    handler there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    holding = True
    before = {number: handler for number in ENDS if callable(handler := signal.getsignal(number))}

    def note(number: int, frame: FrameType | None) -> None:
        if holding:
            came.append(number)
        else:  # while handlers are put back, of which one may raise
            before[signal.Signals(number)](number, frame)

    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        holding = False
        with ExitStack() as heard:
            for late in reversed(came):
                heard.callback(signal.raise_signal, late)
            for number, handler in before.items():
                signal.signal(number, handler)
