"""Continuous batching: requests wait, join when there is a row, and leave when they end."""

from collections import deque
from collections.abc import Iterable

from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.requests import Chunk, Request


class Scheduler:
    """First come, first served. A request that fails, or is aborted, touches no other."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._waiting: deque[Request] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._batch.requests

    def submit(self, requests: Iterable[Request]) -> None:
        self._waiting.extend(requests)

    def abort(self, request: Request) -> None:
        """Drop a request wherever it is; it gets no further chunk."""
        if request in self._waiting:
            self._waiting.remove(request)
        self._batch.leave(request)

    def step(self) -> list[tuple[Request, Chunk]]:
        """One request joins if one waits and a row is free, else one cycle for all in flight.

        Returns what is new, by request; the last chunk of each carries its Completion. A request that failed has its
        `error` set and an empty chunk.
        """
        if self._waiting and len(self._batch.requests) < self._batch.max_rows:
            request = self._waiting.popleft()
            progress = [(request, self._batch.join(request))]
        else:
            progress = self._batch.cycle()
        return [(request, request.chunk(kept)) for request, kept in progress]
