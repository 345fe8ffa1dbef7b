"""SamplingParams -> a body for vLLM's /v1/completions, and its answer back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2_core.engines import Generated
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.sampling import SamplingParams

NOT_HONOURED = {
    "logprobs": "generate_ids does not tell them: ask vLLM's own API",
    "logits_processor": "it cannot travel to another process",
    "constraint": "it cannot travel to another process: use response_format of vLLM's own API",
}
NOT_WITH_DRAFTS = ("min_p", "logit_bias")
"""vLLM refuses them as soon as it has a drafter."""
LARGEST_BIAS = 100.0
"""vLLM cuts a bias that goes further."""
SEEDS = range(-(2**63), 2**63)


def body(model: str, prompt: Sequence[int], params: SamplingParams, *, drafts: bool) -> dict[str, Any]:
    """The request for one completion. drafts: whether this server has a drafter.

    Raises SamplingError for an option that vLLM would honour otherwise than `SamplingParams` says, or not at all.
    """
    _refuse(params, drafts)
    if not prompt:
        raise SamplingError("the prompt is empty: give at least one id")
    asked: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "return_token_ids": True,
    }
    if params.seed is not None:
        asked["seed"] = params.seed
    if params.logit_bias:
        asked["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return asked


def generated(answer: Mapping[str, Any]) -> Generated:
    """What /v1/completions answered; EngineError if it is no answer of a vLLM that returns ids."""
    try:
        choice, usage = answer["choices"][0], answer["usage"]
        ids = choice["token_ids"]
        if ids is None:
            raise KeyError("token_ids")
        drafting = ((answer.get("metrics") or {}).get("speculative_decoding")) or {}
        return Generated(
            token_ids=list(ids),
            text=choice["text"],
            finish_reason="length" if choice["finish_reason"] == "length" else "stop",
            num_drafted=drafting.get("num_draft_tokens", 0),
            num_accepted=drafting.get("num_accepted_draft_tokens", 0),
            num_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )
    except (KeyError, IndexError, TypeError) as problem:
        raise EngineError(f"vLLM answered without {problem}: this version's /v1/completions is not understood") from None


def _refuse(params: SamplingParams, drafts: bool) -> None:
    neutral = SamplingParams()
    for name, why in NOT_HONOURED.items():
        if getattr(params, name) != getattr(neutral, name):
            raise SamplingError(f"{name} is not honoured by the engine vllm: {why}.")
    for name in NOT_WITH_DRAFTS:
        if drafts and getattr(params, name) != getattr(neutral, name):
            raise SamplingError(f"{name} is refused by vLLM when it drafts: start it without a drafter.")
    if any(abs(bias) > LARGEST_BIAS or math.isinf(bias) for bias in (params.logit_bias or {}).values()):
        raise SamplingError(f"logit_bias goes beyond {LARGEST_BIAS:g}, where vLLM cuts it.")
    if not params.speculate:
        raise SamplingError("speculate=False is not honoured by the engine vllm: start it without a drafter.")
    if params.seed is not None and params.seed not in SEEDS:
        raise SamplingError(f"seed is {params.seed}; vLLM's are {SEEDS.start}..{SEEDS.stop - 1}.")
