"""What vLLM calls in each of its processes, through the entry-point group `vllm.general_plugins`, before it makes a config.

`DFLASH2_VLLM` decides: `off`; `auto`, the default, leaves DFlash 2 to vLLM where vLLM has it itself (its V2 runner); `on` asks
vLLM for the V1 runner, where this plugin drafts. Nothing that happens here keeps vLLM from serving.
"""

import logging
import os
from functools import wraps
from typing import Any

from dflash2_core import __version__
from dflash2_core.errors import Dflash2Error
from dflash2_vllm.hooks import ARGUMENTS, GATE, MODEL, PROPOSER, SCHEDULED, TESTED, differences, find, replace

logger = logging.getLogger("vllm.dflash2")
VARIABLE = "DFLASH2_VLLM"
MODES = ("off", "auto", "on")
V2 = "VLLM_USE_V2_MODEL_RUNNER"
CANDIDATE_HEADS = "DFlash candidate-head drafts"
"""vLLM's reason not to run DFlash 2 on its V1 runner."""
_registered = False


def register() -> None:
    """Once a process; never raises."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        _register()
    except Exception:  # an adapter never breaks its engine
        logger.exception("dflash2 %s changes nothing: it failed. vLLM serves on without it", __version__)


def mode() -> str:
    """What `DFLASH2_VLLM` says; `auto` where it says nothing that is known."""
    said = os.environ.get(VARIABLE, "auto")
    if said not in MODES:
        logger.warning("%s is %r: expected %s; taken for auto", VARIABLE, said, ", ".join(MODES))
        return "auto"
    return said


def runs_natively() -> bool:
    """Whether vLLM would take its V2 runner, which has DFlash 2, as far as that can be told before there is a config."""
    import vllm.envs as envs
    from vllm.triton_utils import HAS_TRITON

    wanted: bool | None = envs.VLLM_USE_V2_MODEL_RUNNER
    return bool(HAS_TRITON) if wanted is None else wanted


def _register() -> None:
    from vllm import __version__ as version

    wanted = mode()
    if wanted == "off":
        logger.info("dflash2 %s: off, as %s says", __version__, VARIABLE)
        return
    if found := list(differences()):
        logger.warning(
            "dflash2 %s changes nothing in vLLM %s: %s. Mend: install vLLM %s, or a dflash2 made for this one",
            __version__,
            version,
            "; ".join(found),
            TESTED,
        )
        return
    if not version.startswith(TESTED):
        logger.warning(
            "dflash2 %s was tested with vLLM %s, this is %s: what it touches looks the same", __version__, TESTED, version
        )
    if wanted == "on":
        os.environ.setdefault(V2, "0")
    _install()


def _install() -> None:
    from dflash2_vllm.joining import unpadded
    from dflash2_vllm.mends import mend_what_fails
    from dflash2_vllm.proposer import DFlash2Proposer

    mend_what_fails()
    replace(PROPOSER, DFlash2Proposer)
    runner = PROPOSER.rpartition(":")[2]
    replace(f"vllm.v1.worker.gpu_model_runner:{runner}", DFlash2Proposer)  # it has the class under its own name
    replace(ARGUMENTS, _arguments(find(ARGUMENTS)))
    replace(GATE, _gate(find(GATE)))
    replace(SCHEDULED, unpadded(find(SCHEDULED)))
    replace(f"{MODEL}.load_weights", _load_weights(find(f"{MODEL}.load_weights")))


def _arguments(original: Any) -> Any:
    from dflash2_vllm.asked import completed

    @wraps(original)
    def create_speculative_config(self: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
        if runs_natively():
            if self.speculative_config is not None:
                logger.info("dflash2 %s stays out: this vLLM runs DFlash 2 by itself, on its V2 runner", __version__)
        elif not completed(self):
            return None
        return original(self, target_model_config, target_parallel_config)

    return create_speculative_config


def _gate(original: Any) -> Any:
    """The reasons why a config cannot run on the V1 runner; vLLM refuses with them."""
    from dflash2_vllm.checks import layer_problems, problems_of
    from dflash2_vllm.conform import conform
    from dflash2_vllm.drafters import is_dflash2, read_drafter

    @wraps(original)
    def unsupported(self: Any) -> list[str]:
        if not is_dflash2(self.speculative_config):
            return list(original(self))
        draft = self.speculative_config.draft_model_config
        try:
            config = read_drafter(draft.model, draft.revision)
        except Dflash2Error as problem:
            return [*original(self), str(problem)]
        if not list(layer_problems(config)):
            conform(draft.hf_config, config)
        return [reason for reason in original(self) if reason != CANDIDATE_HEADS] + list(problems_of(self, config))

    return unsupported


def _load_weights(original: Any) -> Any:
    """Tensors under the core's names: codebooks with or without `.weight`, a mask row that is a tensor."""
    from dflash2_core.checkpoint.names import canonical
    from dflash2_core.drafter.model import OWN_MASK

    @wraps(original)
    def load_weights(self: Any, weights: Any) -> Any:
        named = {canonical(name): tensor for name, tensor in weights}
        if OWN_MASK in named:
            self.model.has_separate_mask_embedding = True
        return original(self, named.items())

    return load_weights
