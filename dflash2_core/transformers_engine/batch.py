"""The requests in flight: a row each of the target's cache and of the drafter's context, one pass for all of them."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from dflash2_core.drafter import Drafter, DrafterContext
from dflash2_core.proposal import Proposal
from dflash2_core.sampling import RandomStreams
from dflash2_core.transformers_engine.judge import Outcome, judge
from dflash2_core.transformers_engine.requests import Request
from dflash2_core.transformers_engine.target import Target
from dflash2_core.transformers_engine.width import Width

NOT_FINITE = "drafter output not finite"
NOT_WORTH_IT = "does not pay at present"
MOST_LATE = 32  # plain steps whose features may wait
GIVE_UP = 512  # cycles of rest for which it is not worth to keep features


class Batch:
    """Rows 0 .. len(requests) - 1 are in use, in the order of `requests`; when one leaves, the last takes its row.

    target         whose text it is
    drafter        None: plain decoding
    num_drafts     drafts a cycle at most; 0: none
    max_rows       requests at once
    prefill_chunk  most prompt tokens in one pass
    width          how many drafts of those a cycle asks for
    """

    def __init__(
        self, target: Target, drafter: Drafter | None, width: Width, *, num_drafts: int, max_rows: int, prefill_chunk: int
    ) -> None:
        self.target, self.drafter, self.num_drafts = target, drafter, num_drafts
        self.width, self.max_rows, self.prefill_chunk = width, max_rows, prefill_chunk
        self.requests: list[Request] = []
        self._cache = target.new_cache(max_rows)
        self._context: DrafterContext | None = None
        self._taps: Sequence[int] = ()
        self._late: list[tuple[Tensor, list[int]]] = []
        self._given_up: set[Request] = set()  # of which the drafter sees no more
        self._sick: set[Request] = set()  # whose context holds features that are not finite
        if drafter is not None and num_drafts:
            self._context, self._taps = drafter.new_context(max_rows), drafter.config.target_layer_ids

    @torch.inference_mode()
    def join(self, request: Request) -> list[int]:
        """Read a request's prompt and return its first token, committed. If it ends or fails with it, its row is free again."""
        self._catch_up()
        row = len(self.requests)
        self.requests.append(request)
        self._cache.clear(row)
        if self._context is not None:
            self._context.join()
        if not request.params.speculate or self.width.rest(len(self.requests)) >= min(request.budget, GIVE_UP):
            self._given_up.add(request)
        try:
            logits = self._prefill(request.prompt, row, () if request in self._given_up else self._taps)
            (outcome,) = judge([request], self._nothing(1), logits)
            return self._commit(request, outcome, logits[0])
        except BaseException:
            self.leave(request)
            raise
        finally:
            if request.is_over:
                self.leave(request)

    @torch.inference_mode()
    def cycle(self) -> list[tuple[Request, list[int]]]:
        """Draft, verify and commit for every request; returns the ids committed for each. Those that end with it leave.

        What is raised here (no memory left, an interrupt) is no request's own fault: all leave, none is half committed.
        """
        requests = list(self.requests)
        try:
            progress = self._cycle(requests)
        except BaseException:
            self._late.clear()
            for request in requests:
                self.leave(request)
            raise
        for request in requests:
            if request.is_over:
                self.leave(request)
        return progress

    def _cycle(self, requests: Sequence[Request]) -> list[tuple[Request, list[int]]]:
        begin = time.perf_counter()
        anchors = torch.tensor([request.output[-1] for request in requests], device=self.target.device)
        width, chosen = self._choose_width()
        if width > 0 or len(self._late) >= MOST_LATE:
            self._catch_up()
        asked, reasons = zip(*(self._drafts_to_ask(row, request, width) for row, request in enumerate(requests)), strict=True)
        proposal = self._propose(anchors, asked)
        block = torch.cat((anchors[:, None], proposal.tokens), dim=1)
        rows = block.shape[1]
        seen = [request not in self._given_up for request in requests]
        wanted = self._taps if any(seen) else ()
        logits, taps = self.target.forward(block, self._cache, rows=rows, taps=wanted, revocable=rows > 1)
        progress, counts, accepted = [], [], []
        for row, (request, outcome) in enumerate(zip(requests, judge(requests, proposal, logits), strict=True)):
            kept = self._commit(request, outcome, logits[row])
            if outcome.drafted:
                accepted.append((outcome.drafted, outcome.accepted))
                request.stats.record(outcome.drafted, outcome.accepted, len(kept))
            else:
                request.stats.skip(reasons[row])
                if asked[row] and self._context is not None and not self._context.finite[row]:
                    self._sick.add(request)
            counts.append(0 if request.is_over else len(kept))
            progress.append((request, kept))
        self.target.rewind(self._cache, counts)
        if self._context is not None and taps is not None:
            self._late.append((taps, [count if is_seen else 0 for count, is_seen in zip(counts, seen, strict=True)]))
        if chosen and max((drafted for drafted, _ in accepted), default=0) == width:  # else it was a cycle of another width
            self.width.note(len(requests), width, accepted, time.perf_counter() - begin)
        return progress

    @torch.inference_mode()
    def leave(self, request: Request) -> None:
        """Give a request's row back; nothing happens if it has none."""
        if request not in self.requests:
            return
        self._catch_up()
        row, last = self.requests.index(request), len(self.requests) - 1
        self._cache.move(last, row)
        if self._context is not None:
            self._context.leave(row)
        self._sick.discard(request)
        self._given_up.discard(request)
        self.requests[row] = self.requests[last]
        self.requests.pop()

    def _catch_up(self) -> None:
        """Append to the drafter's context what it has not seen yet; plain steps wait for each other and go as one."""
        late, self._late = self._late, []
        if self._context is None or not late:
            return
        first = late[0][1]
        if all(taps.shape[1] == 1 and counts == first for taps, counts in late):
            late = [(torch.cat([taps for taps, _ in late], dim=1), [len(late) * count for count in first])]
        for taps, counts in late:
            self._context.append(taps, counts)

    def _choose_width(self) -> tuple[int, bool]:
        """What this cycle asks for, and whether that was a choice; requests that it will not ask for again are given up."""
        rows = len(self.requests)
        if not self.width.rest(rows) and self._given_up.issuperset(self.requests):
            return 0, False
        width = self.width.choose(rows)
        if width == 0:
            rest = self.width.rest(rows)
            self._given_up.update(each for each in self.requests if rest >= min(each.remaining, GIVE_UP))
        if self._given_up.issuperset(self.requests):
            self._late.clear()
        return width, True

    def _prefill(self, prompt: Sequence[int], row: int, wanted: Sequence[int]) -> Tensor:
        """Logits [1, 1, V] after the prompt's last token; wanted: layers to tap."""
        ids = torch.tensor([prompt], device=self.target.device)
        for start in range(0, len(prompt), self.prefill_chunk):
            chunk = ids[:, start : start + self.prefill_chunk]
            logits, taps = self.target.forward(chunk, self._cache, rows=1, taps=wanted, first_row=row)
            if self._context is not None and taps is not None:
                self._context.append(taps, [chunk.shape[1]], first_row=row)
        return logits

    def _propose(self, anchors: Tensor, asked: Sequence[int]) -> Proposal:
        if self.drafter is None or self._context is None or not any(asked):
            return self._nothing(len(anchors))
        params = [request.params for request in self.requests]
        temperatures = [0.0 if each.is_greedy else each.temperature for each in params]
        streams = RandomStreams([request.seed for request in self.requests]) if any(temperatures) else None
        return self.drafter.propose(
            self._context,
            anchors,
            asked,
            embed=self.target.embed,
            head=self.target.head,
            temperature=torch.tensor(temperatures, device=anchors.device),
            streams=streams,
        )

    def _nothing(self, rows: int) -> Proposal:
        none = torch.zeros(rows, 0, dtype=torch.int64, device=self.target.device)
        return Proposal(tokens=none, lengths=none.sum(1))

    def _drafts_to_ask(self, row: int, request: Request, width: int) -> tuple[int, str]:
        """How many drafts a request takes in this cycle, and why it may verify none."""
        if self.drafter is None or self._context is None:
            return 0, "no drafter" if self.drafter is None else "block size 1"
        if not request.params.speculate:
            return 0, "turned off by the request"
        if width == 0 or request in self._given_up:
            return 0, NOT_WORTH_IT
        last_position = self.drafter.config.max_position_embeddings - 1
        room = last_position - (request.num_tokens - 1)
        if room <= 0:
            return 0, "past the drafter's context limit"
        if request.remaining == 1:
            return 0, "last token of the budget"
        if request in self._sick:
            return 0, NOT_FINITE
        return min(width, request.remaining - 1, room), NOT_FINITE

    def _commit(self, request: Request, outcome: Outcome, logits: Tensor) -> list[int]:
        """logits [L+1, V]: row i judged the i-th id."""
        kept = request.commit(outcome.ids)
        if request.params.logprobs is not None and kept:
            request.note_logprobs(logits[: len(kept)])
        if request.finish_reason is None:
            request.error = outcome.error
        return kept
