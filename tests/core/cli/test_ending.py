"""`dflash2` ended by a signal, at any time: no traceback, and an exit code that says so."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines.signals import ENDS, heard

DEADLINE = 60


@pytest.mark.parametrize("number", ENDS)
def test_while_its_modules_are_being_imported(number: signal.Signals) -> None:
    with heard():
        process = subprocess.Popen([sys.executable, "-m", "dflash2_core.cli", "--help"], stdout=-1, stderr=-1, text=True)
    deadline = time.monotonic() + DEADLINE
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
