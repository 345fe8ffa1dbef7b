"""What SGLang looks like after its plugins were loaded: run in SGLang's own Python by `test_plugin.py`.

`python -m tests.sglang.looking CASES`: CASES is JSON, name -> {"before": code, "environment": variables}; one JSON object comes
back. What the plugin touches is imported once, and each case is a fork of that: loading SGLang takes a quarter of a minute.
"""

import json
import logging
import os
import sys
from typing import Any

from dflash2_sglang.cpu.standin import provide_sgl_kernel


class Said(logging.Handler):
    """What dflash2 logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("dflash2"):
            self.lines.append(record.getMessage())


def main() -> None:
    cases = json.loads(sys.argv[1])
    if os.environ["SGLANG_USE_CPU_ENGINE"] == "1":
        provide_sgl_kernel()
        from dflash2_sglang import hooks

        hooks.states()
    print(json.dumps({name: forked(**case) for name, case in cases.items()}))


def forked(before: str = "", environment: dict[str, str] | None = None) -> Any:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.environ.update(environment or {})
        with os.fdopen(writing, "w") as told:
            told.write(json.dumps(looked(before)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        found = json.loads(told.read() or "null")
    os.wait()
    return found


def looked(before: str) -> dict[str, Any]:
    """hooked, choices, registered: what is changed; said: the lines; ended: the sentence SGLang would end with, or None."""
    said = Said()
    logging.basicConfig(level=logging.INFO, handlers=[said], force=True)
    exec(before, {})
    from sglang.srt.plugins import load_plugins

    ended = None
    try:
        load_plugins()
    except SystemExit as end:
        ended = str(end)
    from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative.spec_registry import get_spec

    return {
        "hooked": sorted(HookRegistry._patched),
        "choices": DRAFT_ATTENTION_BACKEND_CHOICES,
        "registered": get_spec("DFLASH2") is not None,
        "said": said.lines,
        "ended": ended,
    }


if __name__ == "__main__":
    main()
