"""The logits that a request's options make of the target's own: bias, penalties, logits processor, in this order.

Row i of a block judges d_{i+1} after prompt + output + d_1..d_i, so that every option sees the history that decoding
token by token would have shown it.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.sampling.params import SamplingParams

Ids = Sequence[int] | Tensor


def processed_logits(
    logits: Tensor,
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[Ids],
    outputs: Sequence[Ids],
    drafts: Sequence[Ids] | Tensor,
    lengths: Tensor | None = None,
) -> Tensor:
    """logits [B, L+1, V] -> same shape: the same tensor if no row asks for a change, else a float32 or float64 copy.

    params   one a row
    prompts  one a row, ids of the prompt
    outputs  one a row, ids emitted so far, the anchor included
    drafts   [B, L] int64, or one sequence of at most L ids a row
    lengths  [B] int64, drafts per row (up to the first that ends the text, where the caller knows it); None: as many as
             `drafts` has. Rows past a row's length are left alone, as are those after a draft that the logits processor
             forbids: verification never reaches them.

    Order, as in vLLM: logit bias; repetition penalty over prompt and output (a positive logit is divided, a negative
    one multiplied); frequency and presence penalty over the output (subtracted per count, and once); logits processor.
    Hugging Face has the first two in this order, no presence or frequency penalty, and its custom processors last.
    Raises SamplingError for an id in logit_bias outside the vocabulary and for a processor that returns another shape.
    """
    B, rows, V = logits.shape
    if not len(params) == len(prompts) == len(outputs) == len(drafts) == B:
        raise SamplingError(
            f"{B} rows of logits came with {len(params)} params, {len(prompts)} prompts, {len(outputs)} outputs and "
            f"{len(drafts)} rows of drafts; each row needs one of each."
        )
    rewritten = [b for b in range(B) if params[b].rewrites_logits]
    if not rewritten:
        return logits
    logits = logits.to(judged_dtype(logits.dtype), copy=True)
    for b in rewritten:
        params[b].check_vocabulary(V)
        length = min(len(drafts[b]), rows - 1) if lengths is None else int(lengths[b])
        _rewrite(logits[b, : length + 1], params[b], prompts[b], outputs[b], drafts[b][:length])
    return logits


def judged_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 and float32 stay; half precision is judged in float32, where a sum over the vocabulary is safe."""
    return torch.promote_types(dtype, torch.float32)


def _rewrite(logits: Tensor, params: SamplingParams, prompt: Ids, output: Ids, drafts: Ids) -> None:
    """logits [L+1, V] of one row, in place."""
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[:, ids] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if params.needs_history:
        parts = [torch.as_tensor(part, dtype=torch.int64, device=logits.device) for part in (prompt, output, drafts)]
        _penalise(logits, params, *parts)
        _process(logits, params, torch.cat(parts), len(drafts))


def _penalise(logits: Tensor, params: SamplingParams, prompt: Tensor, output: Tensor, drafts: Tensor) -> None:
    """logits [L+1, V] in place, at the S distinct ids of the history alone."""
    r, presence, frequency = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    if r == 1 and presence == 0 and frequency == 0:
        return
    drafts = drafts.clamp(0, logits.shape[-1] - 1)  # ragged rows without `lengths`: padding counts for rows nobody reads
    prompt, output = (part[(part >= 0) & (part < logits.shape[-1])] for part in (prompt, output))  # e.g. image slots
    ids, slots = torch.cat([prompt, output, drafts]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    in_prompt, in_output, in_drafts = slots.split([len(prompt), len(output), len(drafts)])
    S = len(ids)
    drafted = F.pad((in_drafts[:, None] == torch.arange(S, device=ids.device)).cumsum(0), (0, 0, 1, 0))  # [L+1, S]
    count = in_output.bincount(minlength=S) + drafted
    seen = (in_prompt.bincount(minlength=S) > 0) | (count > 0)
    z = logits[:, ids]
    z = torch.where(seen, torch.where(z > 0, z / r, z * r), z)
    logits[:, ids] = z - frequency * count - presence * (count > 0)


def _process(logits: Tensor, params: SamplingParams, history: Tensor, num_drafts: int) -> None:
    """logits [L+1, V] in place, by the request's own function; history [T+L] int64."""
    if params.logits_processor is None:
        return
    T = len(history) - num_drafts
    for i in range(num_drafts + 1):
        processed = params.logits_processor(history[: T + i], logits[i])
        if not isinstance(processed, Tensor) or processed.shape != logits[i].shape:
            found = list(processed.shape) if isinstance(processed, Tensor) else type(processed).__name__
            raise SamplingError(f"The logits processor returned {found}; it must return {list(logits[i].shape)} logits.")
        logits[i] = processed
        if i < num_drafts and logits[i, history[T + i]] == -torch.inf:
            return
