"""What the core knows of a pair by itself, which every engine is held against."""

from functools import cached_property
from pathlib import Path

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.conformance.cases import Case
from dflash2_core.conformance.subjects import InThisProcess, ask
from dflash2_core.drafter import load_drafter
from dflash2_core.errors import CheckpointError
from dflash2_core.transformers_engine import TransformersEngine
from dflash2_core.transformers_engine.target import Target


class Reference:
    """Loaded when first asked; what the target and the drafter raise when they are loaded, it raises then.

    folder   the target's Hugging Face folder
    drafter  the drafter's folder; a GGUF is not read here: its acceptance is not compared
    dtype    of both, as `Target.from_pretrained` takes it; gaps and laws want float32
    """

    def __init__(self, folder: Path, drafter: Path, *, parallel: int, dtype: str = "float32") -> None:
        self.folder, self.drafter, self.parallel, self.dtype = folder, drafter, parallel, dtype

    @cached_property
    def target(self) -> Target:
        """Tokenizer, gaps and laws are its own."""
        return Target.from_pretrained(self.folder, dtype=self.dtype)

    def encode(self, text: str) -> list[int]:
        """The tokenizer's ids, special tokens read as such."""
        assert self.target.tokenizer is not None  # `from_pretrained` refuses a folder without one
        return list(self.target.tokenizer(text)["input_ids"])

    def plain(self) -> InThisProcess:
        """The core's engine without the drafter."""
        return InThisProcess(TransformersEngine(self.target, max_batch_size=self.parallel))

    def drafted(self) -> InThisProcess:
        """The core's engine with the drafter. Raises CheckpointError for a GGUF."""
        if is_gguf(self.drafter):
            raise CheckpointError(f"{self.drafter} is a GGUF: the engine transformers takes the folder of a checkpoint")
        drafter = load_drafter(self.drafter, dtype=self.target.dtype, device=self.target.device)
        return InThisProcess(TransformersEngine(self.target, drafter, max_batch_size=self.parallel))

    def acceptance(self, greedy: list[Case] | tuple[Case, ...]) -> AcceptanceStats | None:
        """What the core counts on greedy cases; None for a GGUF."""
        return None if is_gguf(self.drafter) else ask(self.drafted(), greedy, (), drafts=True).drafting[0]
