"""The proposer of vLLM's V1 runner, for DFlash 2. Imports vLLM: `plugin` does so once the hooks are as expected.

Model, paged K/V, attention and the copying of positions and slots are vLLM's own, so that prefix-cache hits, chunked prefill,
preemption and abort stay right. The runner calls `propose` after each step, with the target's features of that step.
"""

import logging
from typing import Any

import torch
from torch import Tensor
from vllm.v1.spec_decode.dflash import DFlashProposer

from dflash2_core.drafter.model import shaped_logits
from dflash2_core.sampling import RandomStreams
from dflash2_vllm.drafters import is_dflash2, read_drafter, require_weights
from dflash2_vllm.drafting import Drafts, draft, without_drafts
from dflash2_vllm.limits import Rows, keep_within, rows_that_fit, shorten
from dflash2_vllm.seeds import seeds_of

logger = logging.getLogger("vllm.dflash2")


class DFlash2Proposer(DFlashProposer):  # type: ignore[misc]
    """Takes the place of vLLM's DFlashProposer; for a drafter that is no DFlash 2 it is that."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        self._runner = runner
        self._walks = is_dflash2(vllm_config.speculative_config)
        self._drafts = self.num_speculative_tokens
        self._warned = False
        if self._walks:
            # The runner would stop drafting, and writing context, for all rows as soon as one comes near the limit.
            runner._input_fits_in_drafter = lambda common_attn_metadata: common_attn_metadata is not None

    def load_model(self, target_model: Any) -> None:
        """Loads it, and looks at the files once more where they were not on this machine before."""
        super().load_model(target_model)
        if self._walks:
            place = (self.draft_model_config.model, self.draft_model_config.revision)
            require_weights(*place)
            self._config = read_drafter(*place)
            self._selector = self.model.model.candidate_selector

    def set_inputs_first_pass(
        self,
        target_token_ids: Tensor,
        next_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
        token_indices_to_sample: Tensor | None,
        cad: Any,
        num_rejected_tokens_gpu: Tensor | None,
    ) -> tuple[int, Tensor, Any]:
        """vLLM's, then: which anchors at which positions, and nothing past the limit."""
        total, indices, block = super().set_inputs_first_pass(
            target_token_ids,
            next_token_ids,
            target_positions,
            target_hidden_states,
            token_indices_to_sample,
            cad,
            num_rejected_tokens_gpu,
        )
        if not self._walks:
            return total, indices, block
        count = len(next_token_ids)
        queries = self.positions[:total]
        self._anchors, self._starts, self._fits = next_token_ids.long(), queries.view(count, -1)[:, 0].clone(), None
        limit = self._runner.effective_drafter_max_model_len
        if cad.max_seq_len + self._drafts + 1 > limit:  # known to the host; what each row needs may not be
            self._fits = rows_that_fit(queries, count, limit)
            context = len(target_token_ids)
            rows = Rows(
                context_positions=self._context_positions_buffer[:context],
                context_slots=self._context_slot_mapping_buffer[:context],
                query_positions=queries,
                query_slots=block.slot_mapping,
            )
            keep_within(rows, limit)
            shorten(block, limit)
        return total, indices, block

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """[B, K] ids; or lists, where the runner takes them and a row has no drafts."""
        tokens = super().propose(*args, **kwargs)
        if not self._walks or self._rows_with is None:
            return tokens
        return [row if has else [] for row, has in zip(tokens.tolist(), self._rows_with.tolist(), strict=True)]

    def _sample_draft_tokens(self, hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, Tensor | None]:
        """hidden_states [B * K, H] of the masks -> ids [B * K], q [B * K, V] or None."""
        if not self._walks:
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)  # type: ignore[no-any-return]
        hidden = hidden_states.view(len(self._anchors), self._drafts, -1)
        logits = shaped_logits(self.model.compute_logits(hidden_states).view(*hidden.shape[:2], -1), self._config)
        temperature, uniforms = None, None
        if self._enable_probabilistic_draft_probs and not sampling_metadata.all_greedy:
            temperature, uniforms = sampling_metadata.temperature, self._uniforms()
        drafts = draft(logits, hidden, self._selector, self._anchors, temperature, uniforms)
        drafts = self._settle(drafts)
        return drafts.tokens.flatten(), None if drafts.probs is None else drafts.probs.flatten(0, 1)

    def _uniforms(self) -> Tensor:
        """[B, K] float64, of the positions of the drafts."""
        seeds = seeds_of(self._runner.requests, self._runner.input_batch.req_ids[: len(self._starts)])
        ahead = self._starts[:, None] + torch.arange(1, self._drafts + 1, device=self._starts.device)
        return RandomStreams(seeds).uniform(ahead, "draft")

    def _settle(self, drafts: Drafts) -> Drafts:
        """Decides which rows have drafts: `_rows_with` [B] bool, or None where the runner gets a draft in every row."""
        has = drafts.sound if self._fits is None else drafts.sound & self._fits
        self._rows_with = None
        if self._runner.use_async_scheduling:  # ids stay on the device, as many in every row
            return without_drafts(drafts, ~has)
        if bool(has.all()):
            return drafts
        self._rows_with = has
        if not self._warned and not bool(drafts.sound.all()):
            self._warned = True
            logger.warning("dflash2: the drafter's numbers are not finite in some rows: these draft nothing")
        return without_drafts(drafts, ~has)
