"""The machine of a measurement, in words."""

import os
import platform
from pathlib import Path


def processor() -> str:
    """As Linux names it, or as Python can."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def described() -> str:
    """Processor, cores and the threads that OpenMP was told; whether other work ran beside it nobody can tell afterwards."""
    threads = os.environ.get("OMP_NUM_THREADS")
    return f"{processor()}, {os.cpu_count()} cores, OMP_NUM_THREADS {threads or 'not set'}"
