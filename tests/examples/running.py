"""An example as its reader starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
"""One thread, since the machine is shared; no hub."""


def run(example: str, *arguments: str | Path, within: float = 900) -> str:
    """What it prints, from the checkout's root; an example that fails, fails the test with its words."""
    command = [sys.executable, ROOT / "examples" / example, *map(str, arguments)]
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=within)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def acceptance_length(said: str) -> float:
    """As every example says it."""
    [length] = re.findall(r"acceptance length ([\d.]+)", said)
    return float(length)
