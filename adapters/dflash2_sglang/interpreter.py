"""SGLang's own Python: where it is, and what is installed in it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_core.engine_program import built_program, json_answer, stated_program
from dflash2_core.errors import EngineError

VARIABLE = "DFLASH2_SGLANG_PYTHON"
BUILT_BY_CI = Path(".venvs/sglang/bin/python")
INSTALLED = """
import json
from importlib.metadata import PackageNotFoundError, entry_points, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
import torch
plugins = [point.value for point in entry_points(group="sglang.srt.plugins")]
plugin, accelerator = "dflash2_sglang.plugin:register" in plugins, torch.accelerator.is_available()
print(json.dumps({"sglang": of("sglang"), "plugin": plugin, "accelerator": accelerator}))
"""
SECONDS_TO_ANSWER, SECONDS_TO_IMPORT = 120, 300


@dataclass(frozen=True, kw_only=True)
class Installed:
    """SGLang's version there, whether SGLang will find the plugin, and whether torch sees an accelerator."""

    sglang: str
    plugin: bool
    accelerator: bool

    @property
    def on_cpu(self) -> bool:
        """Whether SGLang runs on the CPU: told to, or nothing else there."""
        return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1" or not self.accelerator


def find_interpreter(setting: Path | None) -> Path:
    """`setting`, else the environment variable, else what `ci/sglang.sh` built; EngineError if nowhere."""
    stated = stated_program(setting, VARIABLE, expected="the Python that SGLang is installed in")
    if found := stated or built_program(BUILT_BY_CI):
        return found
    raise EngineError(
        f"SGLang's Python was not found: set {VARIABLE} to the Python that SGLang is installed in, or build one in a checkout "
        "of dflash2 with `bash ci/sglang.sh` (some three minutes)"
    )


def installed_in(python: Path) -> Installed:
    """What stands in its metadata; SGLang is not imported. EngineError where it is not there."""
    found = json_answer([str(python), "-c", INSTALLED], seconds=SECONDS_TO_ANSWER, asked_for="SGLang")
    if found["sglang"] is None:
        raise EngineError(f"SGLang is not installed in the environment of {python}")
    return Installed(**found)


def require_plugin(python: Path, found: Installed) -> None:
    """EngineError where SGLang would not find the plugin, or was told not to load it."""
    if not found.plugin:
        raise EngineError(
            f"dflash2 is not installed beside SGLang in the environment of {python}: {python} -m pip install --no-deps dflash2"
        )
    if os.environ.get("DFLASH2_SGLANG") == "off":
        raise EngineError("DFLASH2_SGLANG is off, with which the plugin does nothing in SGLang: unset it")
    named = os.environ.get("SGLANG_PLUGINS")
    if named and "dflash2" not in [name.strip() for name in named.split(",")]:
        raise EngineError(
            f"SGLANG_PLUGINS is {named!r}, with which SGLang does not load dflash2: add it, or unset the variable"
        )


def look_inside(python: Path) -> dict[str, Any]:
    """What `report` says in that environment, SGLang imported as on a CPU; EngineError where it says nothing."""
    return json_answer([str(python), "-m", "dflash2_sglang.report"], seconds=SECONDS_TO_IMPORT, asked_for="SGLang")
