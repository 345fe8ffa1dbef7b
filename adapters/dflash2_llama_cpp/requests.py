"""SamplingParams -> a body for llama-server's /completion, and its answer back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2_core.engines import Generated
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.sampling import SamplingParams

SAMPLERS = ["penalties", "temperature", "min_p", "top_k", "top_p"]
"""In the order of `dflash2_core.target_distribution`; llama.cpp's own order has the temperature last."""
LARGEST_SEED = 2**32 - 2
"""llama.cpp's seeds have 32 bits, and the last of them means that it chooses one."""
NOT_HONOURED = {
    "presence_penalty": "llama.cpp counts the prompt's tokens too",
    "frequency_penalty": "llama.cpp counts the prompt's tokens too",
    "stop_token_ids": "llama.cpp ends a text at strings, not at ids: use stop",
    "ignore_eos": "llama.cpp forbids the end of sequence instead of passing over it",
    "logprobs": "llama.cpp does not tell them for accepted drafts",
    "logits_processor": "it cannot travel to another process",
    "constraint": "it cannot travel to another process: use the grammar of llama.cpp's own API",
}


def body(prompt: Sequence[int], params: SamplingParams, *, room: int) -> dict[str, Any]:
    """The request for one completion. room: tokens that fit behind the prompt, at most that many are asked for.

    Raises SamplingError for an option that llama.cpp would honour otherwise than `SamplingParams` says, or not at all.
    """
    _refuse(params)
    if not prompt:
        raise SamplingError("the prompt is empty: give at least one id")
    if room < 1:
        raise SamplingError(f"the prompt has {len(prompt)} ids and leaves no room for an answer in this server's context")
    asked: dict[str, Any] = {
        "prompt": list(prompt),
        # With a budget that reaches the context's end llama.cpp ends the text before the run of drafts that would reach it.
        "n_predict": min(params.max_new_tokens, room),
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": len(prompt) + room,
        "samplers": SAMPLERS,
        "stop": list(params.stop),
        "return_tokens": True,
        "cache_prompt": True,
        "stream": False,
    }
    if params.seed is not None:
        asked["seed"] = params.seed
    if params.logit_bias:
        asked["logit_bias"] = [[token, False if bias == -math.inf else bias] for token, bias in params.logit_bias.items()]
    return asked


def generated(answer: Mapping[str, Any]) -> Generated:
    """What /completion answered; EngineError if it is no answer of a llama-server that returns ids."""
    try:
        timings = answer["timings"]
        return Generated(
            token_ids=list(answer["tokens"]),
            text=answer["content"],
            finish_reason="length" if answer["stop_type"] == "limit" else "stop",
            num_drafted=timings.get("draft_n", 0),
            num_accepted=timings.get("draft_n_accepted", 0),
            num_cached=timings.get("cache_n", 0),
        )
    except (KeyError, TypeError) as problem:
        raise EngineError(f"llama-server answered without {problem}: this version's /completion is not understood") from None


def _refuse(params: SamplingParams) -> None:
    neutral = SamplingParams()
    for name, why in NOT_HONOURED.items():
        if getattr(params, name) != getattr(neutral, name):
            raise SamplingError(f"{name} is not honoured by the engine llama-cpp: {why}.")
    if not params.speculate:
        raise SamplingError("speculate=False is not honoured by the engine llama-cpp: start it without a drafter.")
    if params.seed is not None and not 0 <= params.seed <= LARGEST_SEED:
        raise SamplingError(f"seed is {params.seed}; llama.cpp's are 0..{LARGEST_SEED}.")
