"""What SGLang runs in each of its processes (entry-point group `sglang.srt.plugins`) before it does anything else.

`load_plugins` swallows exceptions, so whatever goes wrong is said here, in one line, and SGLang serves on without drafts.
"""

import logging
import multiprocessing
import os
import sys
from importlib.metadata import version

from dflash2_sglang import hooks
from dflash2_sglang.cpu.standin import provide_sgl_kernel

logger = logging.getLogger(__name__)
VARIABLE = "DFLASH2_SGLANG"
MODES = ("off", "auto", "on")
"""auto: where SGLang cannot run DFlash 2 itself. on: the same, and SGLang does not start where that is impossible."""
MEND = f"use a version of SGLang that dflash2 was tested with ({', '.join(hooks.TESTED)}), or set {VARIABLE}=off"


def register() -> None:
    """The entry point. Raises SystemExit in mode `on`, else nothing."""
    mode = os.environ.get(VARIABLE, "auto")
    if mode not in MODES:
        logger.error("dflash2: %s is %r, expected one of %s; taken for auto", VARIABLE, mode, ", ".join(MODES))
        mode = "auto"
    if mode == "off" or not _takes_part():
        return
    try:
        problem = _install()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem is None:
        return
    sentence = f"dflash2: nothing was changed in SGLang {_version()}, DFLASH is as it was: {problem}; {MEND}"
    logger.error(sentence)
    if mode == "on":
        raise SystemExit(sentence)


def _takes_part() -> bool:
    """SGLang's first process, which settles the arguments, and its schedulers, which decode; not those that detokenise."""
    return multiprocessing.parent_process() is None or "sglang.srt.managers.scheduler" in sys.modules


def _install() -> str | None:
    """Put the hooks in place; returns why not, if they are not."""
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        logger.info(
            "dflash2: SGLang %s is not told to be on a CPU (SGLANG_USE_CPU_ENGINE=1) and runs DFlash 2 itself elsewhere; "
            "dflash2 stays out of its way",
            _version(),
        )
        return None
    provide_sgl_kernel()
    different = list(hooks.differences(hooks.states()))
    if different:
        target, state = different[0]
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        return f"{target} {state}{more}"
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from dflash2_sglang.algorithm import NAME, Dflash2Algorithm, worker_class

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=Dflash2Algorithm)(worker_class)
    hooks.apply()
    if _version() not in hooks.TESTED:
        logger.warning("dflash2: its hooks fit SGLang %s, with which it was not tested; tested: %s", _version(), hooks.TESTED)
    return None


def _version() -> str:
    return version("sglang")
