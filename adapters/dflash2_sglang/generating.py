"""SamplingParams -> a body for SGLang's /generate, and its answer back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2_core.engines import Generated
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.sampling import SamplingParams
from dflash2_sglang.metrics import acceptance

NOT_HONOURED = {
    "repetition_penalty": "SGLang's looks at the output alone, not at the prompt",
    "seed": "SGLang honours seeds under --enable-deterministic-inference only",
    "logprobs": "generate_ids does not tell them: ask SGLang's own API",
    "logits_processor": "it cannot travel to another process",
    "constraint": "it cannot travel to another process: use json_schema of SGLang's own API",
}


def body(prompt: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """The request for one completion.

    Raises SamplingError for an option that SGLang would honour otherwise than `SamplingParams` says, or not at all.
    """
    _refuse(params)
    if not prompt:
        raise SamplingError("the prompt is empty: give at least one id")
    sampling: dict[str, Any] = {
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_k": params.top_k or -1,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
    }
    if params.logit_bias:
        sampling["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return {"input_ids": list(prompt), "sampling_params": sampling}


def generated(answer: Mapping[str, Any]) -> Generated:
    """What /generate answered; EngineError if it is no answer of an SGLang that returns ids."""
    try:
        meta = answer["meta_info"]
        drafting = acceptance(meta)
        return Generated(
            token_ids=list(answer["output_ids"]),
            text=answer["text"],
            finish_reason="length" if meta["finish_reason"]["type"] == "length" else "stop",
            num_drafted=drafting.num_drafted,
            num_accepted=drafting.num_accepted,
            num_cached=meta.get("cached_tokens", 0),
        )
    except (KeyError, TypeError) as problem:
        raise EngineError(f"SGLang answered without {problem}: this version's /generate is not understood") from None


def _refuse(params: SamplingParams) -> None:
    neutral = SamplingParams()
    for name, why in NOT_HONOURED.items():
        if getattr(params, name) != getattr(neutral, name):
            raise SamplingError(f"{name} is not honoured by the engine sglang: {why}.")
    if params.min_p > 0 and (params.top_p < 1 or params.top_k > 0):
        raise SamplingError("min_p beside top_p or top_k is not honoured by the engine sglang: SGLang applies it after them.")
    if params.top_k > 0 and params.top_p < 1:
        raise SamplingError(
            "top_p beside top_k is not honoured by the engine sglang: SGLang's counts the ids that top_k removed."
        )
    if any(math.isinf(bias) for bias in (params.logit_bias or {}).values()):
        raise SamplingError("a logit_bias of -inf cannot be said in JSON to the engine sglang: give a large negative number.")
    if not params.speculate:
        raise SamplingError("speculate=False is not honoured by the engine sglang: start it without a drafter.")
