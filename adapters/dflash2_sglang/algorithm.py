"""`--speculative-algorithm DFLASH2`: a name of our own, registered the way SGLang provides; `DFLASH` is SGLang's for the same.

SGLang asks an algorithm what it is like; DFLASH2 answers as DFLASH does. Three methods that SGLang's `SpeculativeAlgorithm` has
are missing in `CustomSpecAlgo` (0.5.19 to 0.5.23), although the scheduler calls them: `carries_draft_hidden_states`,
`create_future_map`, `need_topk`.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from dflash2_sglang.arguments import settle

NAME = "DFLASH2"


class Dflash2Algorithm(CustomSpecAlgo):  # type: ignore[misc]
    """What SGLang dispatches on, instead of `SpeculativeAlgorithm.DFLASH`."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    def carries_draft_hidden_states(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        settle(server_args)


def worker_class(server_args: Any) -> type:
    """For `SpeculativeAlgorithm.register`; called in the scheduler's process."""
    from dflash2_sglang.worker import Dflash2Worker

    return Dflash2Worker


def handle_dflash(original: Callable[[Any], None], server_args: Any) -> None:
    """Around `_handle_dflash`, whose first line refuses a CPU."""
    from sglang.srt.arg_groups.overrides import record_foreign_defaults

    record_foreign_defaults(server_args, "dflash2_sglang.arguments.settle", settle)


def create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Around `SpeculativeAlgorithm.create_worker`, of which DFLASH's part is taken over."""
    return worker_class(server_args) if algorithm.is_dflash() else original(algorithm, server_args)
