"""The command `dflash2`: one module a command, and the one place where errors become a sentence and an exit code.

Exit codes: 0 done, 1 a finding, 2 could not run; ended by a signal, 128 and its number.
"""

import io
import os
import signal
import sys
from types import FrameType

from dflash2_core.ending import ENDS
from dflash2_core.errors import Dflash2Error

EXTRAS = {"transformers": "transformers", "tokenizers": "transformers", "gguf": "gguf", "PIL": "bench"}
"""Module -> the extra that brings it."""


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are local folders; nothing here reaches for a hub
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to stop
    for number in ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:  # of SIGINT Python makes a KeyboardInterrupt
            signal.signal(number, _end)
    try:
        from dflash2_core.cli.commands import app  # some seconds, in which it may be interrupted

        app(prog_name="dflash2")
    except Dflash2Error as error:
        sys.exit(_could_not_run(str(error)))
    except ImportError as error:
        if error.name not in EXTRAS:
            raise
        sys.exit(_could_not_run(f"this command needs {error.name}: pip install 'dflash2[{EXTRAS[error.name]}]'"))
    except UnicodeDecodeError as error:
        sys.exit(_could_not_run(f"what was read is not UTF-8 text: {error}"))
    except KeyboardInterrupt:
        sys.exit(130)


def _end(number: int, _: FrameType | None) -> None:
    """In order: what was opened is closed, and engines that were started end."""
    sys.exit(128 + number)


def _could_not_run(sentence: str) -> int:
    print(f"dflash2: {sentence}", file=sys.stderr)
    return 2
