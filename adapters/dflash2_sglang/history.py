"""What each request has written so far, as the worker knows it: with overlap SGLang's own record is a step behind."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary


class Histories:
    """The output of requests whose options depend on it. Forgets a request with its `Req`."""

    def __init__(self) -> None:
        self._outputs: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()

    def begin(self, request: Any, length: int, token: int) -> None:
        """After a prefill of `length` positions that gave `token`: the prompt, and after a retraction its output too."""
        written = length - len(request.origin_input_ids)
        self._outputs[request] = [*list(request.output_ids)[:written], token]

    def extend(self, request: Any, tokens: Sequence[int]) -> None:
        """After a verified block."""
        if request in self._outputs:
            self._outputs[request].extend(tokens)

    def output(self, request: Any, committed: int) -> list[int]:
        """All that was written, the anchor included. committed: positions before the anchor; RuntimeError if they disagree."""
        output = self._outputs.get(request, [])
        if len(request.origin_input_ids) + len(output) != committed + 1:
            raise RuntimeError(
                f"request {request.rid} has {committed} committed positions, and dflash2 knows a prompt of "
                f"{len(request.origin_input_ids)} and {len(output)} tokens written: its penalties cannot be computed"
            )
        return output
