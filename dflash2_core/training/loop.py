"""The training loop: batches, steps, held-out figures, checkpoints, a log."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash2_core.drafter.model import Drafter
from dflash2_core.errors import Dflash2Error
from dflash2_core.training.blocks import block_attention, make_blocks, sample_anchors
from dflash2_core.training.checkpoints import Run
from dflash2_core.training.documents import Batch, Document, collate, digest_of
from dflash2_core.training.evaluation import evaluate
from dflash2_core.training.features import Features, FeatureSource
from dflash2_core.training.losses import Objective, block_losses
from dflash2_core.training.optimizers import Kind, make_optimizers, schedule, set_learning_rates
from dflash2_core.transformers_engine.target import Target


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long, how fast, on how much.

    steps, minutes        one of them: the run's length. By steps a resumed run repeats an uninterrupted one exactly
    documents, anchors    documents a step, and blocks drawn from each
    learning_rate         AdamW's; Muon's own follows from it
    warmup                share of the run
    autocast              bfloat16 for the drafter's forward pass
    keep_features         keep the target's features of every document in memory, for later epochs
    evaluate_every, save_every   in steps; 0: only at the end
    """

    steps: int | None = None
    minutes: float | None = None
    documents: int = 8
    anchors: int = 32
    optimizer: Kind = "adamw"
    learning_rate: float = 6e-4
    warmup: float = 0.04
    clip: float = 1.0
    autocast: bool = False
    keep_features: bool = False
    seed: int = 0
    evaluate_every: int = 0
    save_every: int = 0
    objective: Objective = field(default_factory=Objective)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise Dflash2Error("a training run needs either a number of steps or a number of minutes, not both")
        for name in ("steps", "documents", "anchors"):
            require(name, getattr(self, name), lambda x: x >= 1, "at least 1")
        for name in ("minutes", "learning_rate", "clip"):
            require(name, getattr(self, name), lambda x: 0 < x < math.inf, "finite and above 0")
        for name in ("evaluate_every", "save_every"):
            require(name, getattr(self, name), lambda x: x >= 0, "at least 0 (0: at the end only)")
        require("warmup", self.warmup, lambda x: 0 <= x < 1, "a share of the run, from 0 to less than 1")

    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one it goes on with: all but the length and what is kept when."""
        free = ("steps", "minutes", "keep_features", "evaluate_every", "save_every")
        return {name: value for name, value in asdict(self).items() if name not in free}


def require(name: str, value: Any, allowed: Callable[[Any], bool], expected: str) -> None:
    """Raises Dflash2Error for a value that is not None and not allowed."""
    if value is not None and not allowed(value):
        raise Dflash2Error(f"{name} is {value}; it must be {expected}")


def draw_documents(documents: Sequence[Document], step: int, count: int, seed: int) -> list[Document]:
    """The documents of one step: every epoch goes through all of them once, in an order of its own."""
    chosen = []
    for index in range(step * count, (step + 1) * count):
        epoch, place = divmod(index, len(documents))
        order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(_mixed(seed, epoch)))
        chosen.append(documents[int(order[place])])
    return chosen


def losses_of(
    drafter: Drafter,
    target: Target,
    batch: Batch,
    features: Features,
    anchors: Tensor,
    objective: Objective,
    *,
    progress: float = 1.0,
    autocast: bool = False,
) -> dict[str, Tensor]:
    """The drafter's losses for the blocks at `anchors` [D, N] of a batch of documents, given the target's features of them."""
    config = drafter.config
    blocks = make_blocks(batch, anchors, config.block_size, config.mask_token_id)
    taps, target_hidden = features.taps, features.hidden
    D, T, H = target_hidden.shape
    judges = blocks.positions[:, :-1].reshape(D, -1, 1).clamp(max=T - 1).expand(-1, -1, H)
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=autocast):
        with torch.no_grad():
            target_logits = target.logits(target_hidden.gather(1, judges)).view(*blocks.labels.shape, -1)
        positions = torch.arange(T, device=taps.device).expand(D, -1)
        context = drafter.context_kv(drafter.encode_taps(taps), positions)
        attend = block_attention(config, context, T, blocks)
        hidden = drafter.hidden(drafter.embed(blocks.ids, target.embed), blocks.positions, attend)[:, 1:]
        logits = drafter.logits(hidden, target.head)
        return block_losses(drafter, hidden, logits, target_logits, blocks, objective, progress)


def train(
    drafter: Drafter,
    target: Target,
    documents: Sequence[Document],
    heldout: Sequence[Document],
    settings: Settings,
    folder: Path | None = None,
    *,
    resume: bool = False,
) -> Iterator[dict[str, Any]]:
    """Trains the drafter in place. Yields a record a step: step, progress (0 .. 1), the losses, and `heldout` figures when due.

    documents  those with fewer than two tokens of response hold no block and are left out
    heldout    likewise
    folder     where checkpoints and the log go; None keeps neither. It may not hold another run
    resume     go on from the folder's checkpoint, which must be of the same drafter, settings and documents
    Raises Dflash2Error for that, for documents without a block, and when the loss is no longer finite.
    """
    documents, heldout = _with_blocks(documents, "documents"), _with_blocks(heldout, "held-out documents")
    optimizers = make_optimizers(drafter, settings.optimizer, settings.learning_rate)
    frozen = [name for name, p in drafter.named_parameters() if not p.requires_grad]
    identity = settings.identity() | {"drafter": drafter.config.to_dict(), "frozen": frozen, "documents": digest_of(documents)}
    run = Run(folder, identity)
    step, elapsed = run.resume(drafter, optimizers) if resume else run.begin()
    start = time.monotonic() - elapsed
    trained = [p for p in drafter.parameters() if p.requires_grad]
    drafter.train()
    progress = _progress(settings, step, elapsed)
    source = FeatureSource(target, drafter.config.target_layer_ids, keep=settings.keep_features)
    while progress < 1:
        drawn = draw_documents(documents, step, settings.documents, settings.seed)
        batch = collate(drawn).to(target.device)
        generator = torch.Generator().manual_seed(_mixed(settings.seed, step))
        anchors = sample_anchors(batch, settings.anchors, generator)
        losses = losses_of(
            drafter,
            target,
            batch,
            source.of(drawn),
            anchors,
            settings.objective,
            progress=progress,
            autocast=settings.autocast,
        )
        losses["total"].backward()  # type: ignore[no-untyped-call]
        record: dict[str, Any] = {name: loss.item() for name, loss in losses.items()}
        if not math.isfinite(record["total"]):
            raise Dflash2Error(
                f"step {step + 1}: the loss is {record['total']}; try a smaller learning rate than the present one"
            )
        torch.nn.utils.clip_grad_norm_(trained, settings.clip)
        set_learning_rates(optimizers, schedule(progress, settings.warmup))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        seconds = time.monotonic() - start
        progress = _progress(settings, step, seconds)
        is_last = progress >= 1
        record = {"step": step, "seconds": round(seconds, 2), "progress": progress} | record
        if is_last or _due(settings.save_every, step):
            run.save(drafter, optimizers, step, seconds)
        if heldout and (is_last or _due(settings.evaluate_every, step)):
            record["heldout"] = evaluate(drafter, target, heldout).to_dict()
        run.log(record)
        yield record


def _with_blocks(documents: Sequence[Document], name: str) -> Sequence[Document]:
    kept = [document for document in documents if len(document.tokens) > document.prompt_length + 1]
    if documents and not kept:
        raise Dflash2Error(f"none of the {len(documents)} {name} has two tokens of response: there is nothing to draft")
    return kept


def _mixed(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) % 2**63


def _progress(settings: Settings, step: int, seconds: float) -> float:
    return step / settings.steps if settings.steps is not None else seconds / (60 * (settings.minutes or 0))


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
