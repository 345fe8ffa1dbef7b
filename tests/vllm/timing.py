"""How long the parts of a step take, in vLLM's process on a CPU, where nothing is asynchronous. Imported by `worker.py`."""

import time
from collections.abc import Callable
from typing import Any


class Parts:
    """Seconds by part. A part that lies within another is counted there as well."""

    def __init__(self, runner: Any) -> None:
        self._spent: dict[str, float] = {}
        self._wrap(runner, "execute_model", "target")
        self._wrap(runner, "_sample", "verification")
        if hasattr(runner, "drafter"):
            self._wrap(runner.drafter, "propose", "drafting")
            self._wrap(runner.drafter, "_sample_draft_tokens", "candidates and walk")
            self._wrap(runner.drafter.model, "precompute_and_store_context_kv", "context")

    def taken(self) -> dict[str, float]:
        """Since it was asked last."""
        spent, self._spent = self._spent, {}
        return spent

    def _wrap(self, owner: Any, name: str, part: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._spent[part] = self._spent.get(part, 0.0) + time.perf_counter() - begin

        setattr(owner, name, timed)
