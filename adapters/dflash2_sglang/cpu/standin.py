"""A stand-in for the CPU build of `sgl_kernel`, where there is none."""

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent / "standin"


def provide_sgl_kernel() -> str:
    """Make `sgl_kernel` importable here and in processes that are spawned from here; returns which one will be found.

    The folder goes to the end of the path: it can never shadow a real one. Spawned processes take over the path before they
    import anything of SGLang.
    """
    if find_spec("sgl_kernel") is None:
        sys.path.append(str(FOLDER))
    found = find_spec("sgl_kernel")
    assert found is not None
    return "stand-in" if found.origin and Path(found.origin).is_relative_to(FOLDER) else "installed"
