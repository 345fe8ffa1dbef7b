"""The embedded pair on every side of a comparison: the same weights here and in the peer's own class."""

import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash2_core import Drafter, TransformersEngine, load_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.transformers_engine import Target

CONTEXT_LIMIT = 4608  # the embedded pair states 2,048: past that it writes worse, at the same cost


@dataclass
class Pair:
    """The embedded pair, and the same weights in the peer's own class, with a target as `transformers` makes it."""

    target: Target
    drafter: Drafter
    engine: TransformersEngine
    compiled: TransformersEngine
    plain: TransformersEngine
    peer: Any
    peer_target: PreTrainedModel
    prompts: list[list[int]]
    samples: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def paired(self, name: str, other: str) -> float:
        """The median of the ratios of samples taken one after the other."""
        return statistics.median(a / b for a, b in zip(self.samples[name], self.samples[other], strict=True))


def load() -> Pair:
    from dflash.model import DFlash2DraftModel

    with TemporaryDirectory() as folder:
        paths = [_with_longer_context(path, Path(folder) / path.name) for path in (tiny_pair().target, tiny_pair().drafter)]
        target = Target.from_pretrained(paths[0], dtype="float32", device="cpu")
        untouched = AutoModelForCausalLM.from_pretrained(paths[0], dtype=torch.float32)
        drafter, again = (load_drafter(paths[1], dtype=torch.float32) for _ in range(2))
        peer, loaded = DFlash2DraftModel.from_pretrained(paths[1], dtype=torch.float32, output_loading_info=True)
    if any(loaded[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise SystemExit(f"the peer did not take the drafter's weights as they are: {loaded}")
    assert target.tokenizer is not None
    prompts = [target.tokenizer(entry["text"])["input_ids"] for entry in held_out_prompts()]
    return Pair(
        target=target,
        drafter=drafter,
        engine=TransformersEngine(target, drafter),
        compiled=TransformersEngine(target, again, compile=True),
        plain=TransformersEngine(target),
        peer=peer.eval(),
        peer_target=untouched.eval(),
        prompts=prompts,
    )


def _with_longer_context(source: Path, longer: Path) -> Path:
    shutil.copytree(source, longer)
    config = json.loads((longer / "config.json").read_text())
    (longer / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT_LIMIT}))
    return longer


def prompt_of(pair: Pair, length: int, seed: int) -> list[int]:
    """A text of `length` ids, made of held-out prompts one after the other."""
    ids: list[int] = []
    while len(ids) < length:
        ids += pair.prompts[(7 * seed + 31 * len(ids)) % len(pair.prompts)]
    return ids[:length]


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result
