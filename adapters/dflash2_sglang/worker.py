"""SGLang's DFLASH worker with the core's proposal and verification. Imported by SGLang's scheduler process alone.

SGLang's own worker does the rest: its memory pools, the draft model's pass, the target's pass over the block, the draft model's
keys and values of what was committed.
"""

import logging
from typing import Any

import torch
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2, _commit_accept
from sglang.srt.utils.async_probe import sanitize_nan_logits
from torch import Tensor

from dflash2_core import RandomStreams, verify_greedy, verify_sampled
from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.errors import CompatibilityError
from dflash2_sglang.history import Histories
from dflash2_sglang.law import Filters, accumulated, penalise, probabilities
from dflash2_sglang.model import adopt
from dflash2_sglang.pair import local_folder, reach
from dflash2_sglang.proposal import Rows, propose
from dflash2_sglang.requests import rules_of

logger = logging.getLogger(__name__)


class _Lengths(Tensor):
    """A CPU tensor that takes `record_stream`, which torch has for accelerators only; what is computed of it is a plain one."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        """Memory of a CPU is not given back to a stream."""


class Dflash2Worker(DFlashWorkerV2):  # type: ignore[misc]
    """See SGLang's `BaseSpecWorker` for who calls what."""

    _noise_embed_scale: float

    def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        checkpoint = open_checkpoint(local_folder(server_args.speculative_draft_model_path))
        self.config = checkpoint.config
        context = target_worker.model_runner.model_config.context_len
        adopt(self.draft_model, checkpoint, positions=context + self.block_size)
        if self._noise_embed_scale not in (1.0, self.config.input_embedding_scale):
            raise CompatibilityError(
                f"SGLang scales the embedding by {self._noise_embed_scale} for this target, the drafter was trained with "
                f"{self.config.input_embedding_scale}"
            )
        self._noise_embed_scale = self.config.input_embedding_scale
        self._target_logits_processor = None  # it defers a gather between ranks, of which there is one
        self._histories = Histories()
        self._fresh = torch.Generator().manual_seed(torch.initial_seed())
        logger.info(
            "dflash2: DFlash %d through %s and SGLang's DFLASH worker: blocks of %d rows, %d drafts each",
            self.config.version,
            type(self.draft_model).__name__,
            self.block_size,
            self.block_size - 1,
        )
        for sentence in reach(self.config, context):
            logger.info("dflash2: %s", sentence)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """One prefill, or one cycle: draft, verify, commit."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            self._recall(batch)
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
            self._begin_histories(batch, result)
            return result
        self._batch, self._committed = batch, batch.seq_lens
        batch.seq_lens = batch.seq_lens.as_subclass(_Lengths)
        try:
            return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        finally:
            batch.seq_lens = self._committed

    def _validate_phase1_sampling_support(self, batch: Any) -> None:
        """SGLang warns here that it falls back to greedy verification; this worker does not."""

    def _recall(self, batch: Any) -> None:
        """What a retracted request has written counts for the token after its second prefill too: SGLang has forgotten it."""
        info = batch.sampling_info
        for row, request in enumerate(batch.reqs):
            rules, output = rules_of(request), list(request.output_ids)
            if rules.need_history and output and info.acc_additive_penalties is not None:
                added, scaling = accumulated(rules, output, info.vocab_size)
                info.acc_additive_penalties[row] = added
                if info.acc_scaling_penalties is not None:
                    info.acc_scaling_penalties[row] = scaling

    def _begin_histories(self, batch: Any, result: Any) -> None:
        needing = [row for row, request in enumerate(batch.reqs) if rules_of(request).need_history]
        for row in needing:
            self._histories.begin(batch.reqs[row], int(batch.seq_lens[row]), int(result.next_token_ids[row]))

    # --- draft

    def _propose_selector_block(
        self, *, draft_logits_output: Any, bs: int, lm_head: Any, anchor_token_ids: Tensor, sampling_info: Any
    ) -> Tensor:
        """DFlash 2: the drafts [B, L] of a block."""
        hidden = draft_logits_output.hidden_states.view(bs, self.block_size, -1)[:, 1:]
        return self._propose(hidden, lm_head, anchor_token_ids)

    def _greedy_sample_from_vocab_parallel_head(self, *, hidden_states: Tensor, lm_head: Any, chunk_size: int = 256) -> Tensor:
        """DFlash 1, which SGLang drafts greedily at every temperature."""
        bs = len(self._committed)
        hidden = hidden_states.view(bs, self.block_size - 1, -1)
        return self._propose(hidden, lm_head, self._draft_block_ids_buf[:bs, 0]).reshape(-1)

    def _propose(self, hidden: Tensor, lm_head: Any, anchors: Tensor) -> Tensor:
        filters = _filters(self._batch.sampling_info)
        temperature = filters.temperature.masked_fill(filters.is_greedy, 0.0)
        B, L = hidden.shape[:2]
        uniforms = None
        if bool(temperature.any()):
            self._streams = RandomStreams(self._seeds(B))
            uniforms = self._streams.uniform(self._committed[:, None] + torch.arange(1, L + 1), "draft")
        room = self.config.max_position_embeddings - 1 - self._committed
        rows = Rows(anchors=anchors, lengths=room.clamp(0, L), temperature=temperature, uniforms=uniforms)
        logits = lm_head.quant_method.apply(lm_head, hidden.to(lm_head.weight.dtype), None)
        self._proposal = propose(hidden, logits, self.selector, self.config, rows)
        return self._proposal.tokens

    def _seeds(self, B: int) -> Tensor:
        """A request's own where SGLang honours them (deterministic inference); else new ones for every cycle."""
        own: Tensor | None = self._batch.sampling_info.sampling_seed
        return torch.randint(2**62, (B,), generator=self._fresh) if own is None else own

    # --- verify

    def _accept_block(
        self,
        *,
        candidates: Tensor,
        next_token_logits: Tensor,
        sampling_info: Any,
        draft_input: Any,
        prefix_lens: Tensor,
        bs: int,
        target_predict: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        """next_token_logits [B * (L+1), V]: the target's own, with the grammar's mask; left as they were judged."""
        logits = next_token_logits.view(bs, self.block_size, -1)
        self._rewrite(logits)
        filters = _filters(sampling_info)
        if bool(filters.is_greedy.all()):
            verdict = verify_greedy(self._proposal, logits)
        else:
            verdict = verify_sampled(self._proposal, probabilities(logits, filters), self._streams, self._committed)
        tokens, lengths = _commit_accept(candidates, verdict.num_accepted, verdict.next_token)
        for row, request in enumerate(self._batch.reqs):
            self._histories.extend(request, tokens[row, : lengths[row]].tolist())
        return verdict.num_accepted, lengths, verdict.next_token, tokens, None

    def _rewrite(self, logits: Tensor) -> None:
        """Penalties, bias and what plain SGLang does about numbers that are not finite, in place."""
        for row, request in enumerate(self._batch.reqs):
            rules = rules_of(request)
            if rules.need_history:
                output = self._histories.output(request, int(self._committed[row]))
                penalise(logits[row], rules, output, self._proposal.tokens[row])
        if self._batch.sampling_info.logit_bias is not None:
            logits += self._batch.sampling_info.logit_bias[:, None]
        sanitize_nan_logits(logits, "dflash2: the target's logits")


def _filters(info: Any) -> Filters:
    return Filters(temperature=info.temperatures.view(-1), top_k=info.top_ks, top_p=info.top_ps, min_p=info.min_ps)
