"""A request that joins others: what it draws under its seed is what it would draw alone.

When one id of a new request's prompt is left to compute, vLLM's scheduler pads the request with drafts that do not exist, to a
row as long as those that are verified beside it. On the V1 runner its first id then comes from other draws than alone, and for
want of their q all other rows of the step are verified as if their drafts were certain. See UPSTREAM.md.
"""

from functools import wraps
from typing import Any

from dflash2_vllm.drafters import is_dflash2

PADDING = -1


def unpadded(original: Any) -> Any:
    """`Scheduler._update_after_schedule`, which sees the step as it will be run, before it counts what was scheduled."""

    @wraps(original)
    def update_after_schedule(self: Any, scheduler_output: Any) -> None:
        was_told = self.connector is not None  # how many ids will be computed
        has_v2 = getattr(self, "use_v2_model_runner", False)  # a vLLM that does not say so has the V1 runner
        if not was_told and not has_v2 and is_dflash2(self.vllm_config.speculative_config):
            strip(scheduler_output)
        original(self, scheduler_output)

    return update_after_schedule


def strip(step: Any) -> None:
    """Takes the padding from requests that a SchedulerOutput lets in; those that were running have drafts, or such to come."""
    joining = {request.req_id for request in step.scheduled_new_reqs} | set(step.scheduled_cached_reqs.resumed_req_ids)
    for request in joining & step.scheduled_spec_decode_tokens.keys():
        padding = step.scheduled_spec_decode_tokens[request]
        if set(padding) != {PADDING}:
            continue
        del step.scheduled_spec_decode_tokens[request]
        step.num_scheduled_tokens[request] -= len(padding)
        step.total_num_scheduled_tokens -= len(padding)
