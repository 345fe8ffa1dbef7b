"""SGLang's server arguments with a DFlash drafter on a CPU: checked, and settled as its DFLASH worker needs them."""

import logging
import os
from collections.abc import Iterator
from typing import Any

from dflash2_core.errors import CompatibilityError, Dflash2Error
from dflash2_sglang.pair import check_pair, num_draft_tokens

logger = logging.getLogger(__name__)
BACKEND = "torch_native"
MOST_REQUESTS = 48
"""SGLang's own number under speculation."""
ALONE = {"tp_size": "--tp-size", "pp_size": "--pp-size", "dp_size": "--dp-size"}
OFF = {
    "enable_mixed_chunk": "--enable-mixed-chunk would decode without drafts beside a prompt",
    "speculative_draft_window_size": "--speculative-draft-window-size would replace the drafter's own windows",
    "enable_dp_attention": "--enable-dp-attention spreads a batch over processes",
    "enable_deterministic_inference": "--enable-deterministic-inference is for attention backends that a CPU does not have",
}


def settle(args: Any) -> None:
    """args: SGLang's `ServerArgs`, or what stands in for it while it is resolved; fields are read and set.

    Raises ValueError, which SGLang shows as it is, with the sentence of what does not go together.
    """
    try:
        _check(args)
        checkpoint = check_pair(args.model_path, args.speculative_draft_model_path)
        args.speculative_num_draft_tokens = num_draft_tokens(args.speculative_num_draft_tokens, checkpoint)
    except Dflash2Error as problem:
        raise ValueError(f"dflash2: {problem}") from None
    args.speculative_num_steps = 1
    args.speculative_eagle_topk = 1
    args.speculative_draft_attention_backend = BACKEND
    if args.max_running_requests is None:
        args.max_running_requests = MOST_REQUESTS
    for warning in _without_effect(args):
        logger.warning("dflash2: %s", warning)


def _check(args: Any) -> None:
    if args.speculative_draft_model_path is None:
        raise CompatibilityError(f"{args.speculative_algorithm} needs a drafter: give --speculative-draft-model-path")
    for name, option in ALONE.items():
        if getattr(args, name) != 1:
            raise CompatibilityError(f"{option} is {getattr(args, name)}: DFlash on a CPU runs in one process, leave it at 1")
    for name, reason in OFF.items():
        if getattr(args, name):
            raise CompatibilityError(f"{reason}: leave it out")
    for name in ("attention_backend", "decode_attention_backend", "prefill_attention_backend"):
        if getattr(args, name) not in (None, BACKEND):
            raise CompatibilityError(
                f"the attention backend is {getattr(args, name)} and knows no blocks of drafts on a CPU: "
                f"start SGLang with --attention-backend {BACKEND}"
            )


def _without_effect(args: Any) -> Iterator[str]:
    """What would make SGLang's own verification lossy."""
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if getattr(args, name) < 1:
            option = "--" + name.replace("_", "-")
            yield f"{option} is {getattr(args, name)}, which would keep drafts that the target does not: it has no effect here"
    if float(os.environ.get("SGLANG_SIMULATE_ACC_LEN") or -1) > 0:
        yield "SGLANG_SIMULATE_ACC_LEN is set, which would keep drafts without the target's consent: it has no effect here"
