"""What a request of SGLang's asks of sampling: refused where a drafter would not honour it exactly, else as `Rules`."""

from collections.abc import Callable
from typing import Any

from dflash2_sglang.law import Rules

NEUTRAL = Rules()
NOT_HONOURED = {
    "custom_logit_processor": "it may depend on the output, which grows inside a block",
    "return_sampling_mask": "SGLang has no way to tell the masks of a block on a CPU",
}


def refusal(request: Any) -> str | None:
    """Why this request cannot be served with a drafter, as a sentence; None if it can."""
    for option, reason in NOT_HONOURED.items():
        if getattr(request, option, None):
            return (
                f"{option} is not honoured with a DFlash drafter on a CPU: {reason}. Leave it out, or start SGLang without "
                "--speculative-algorithm."
            )
    return None


def validate_request(original: Callable[..., str | None], request: Any, enable_overlap: bool) -> str | None:
    """Around `validate_dflash_request`, which the scheduler asks for every request."""
    return original(request, enable_overlap) or refusal(request)


def rules_of(request: Any) -> Rules:
    """The penalties of a request; `NEUTRAL` for most."""
    asked = request.sampling_params
    if (
        asked.presence_penalty == 0
        and asked.frequency_penalty == 0
        and asked.repetition_penalty == 1
        and asked.min_new_tokens == 0
    ):
        return NEUTRAL
    return Rules(
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        min_new_tokens=asked.min_new_tokens,
        ending_ids=_ending_ids(request) if asked.min_new_tokens else (),
    )


def _ending_ids(request: Any) -> tuple[int, ...]:
    """As SGLang's `BatchedMinNewTokensPenalizer` has them."""
    tokenizer = request.tokenizer
    ids = {*(request.sampling_params.stop_token_ids or ()), *(request.eos_token_ids or ())}
    ids |= {*(getattr(tokenizer, "additional_stop_token_ids", None) or ()), getattr(tokenizer, "eos_token_id", None)}
    return tuple(sorted(token for token in ids if token is not None))
