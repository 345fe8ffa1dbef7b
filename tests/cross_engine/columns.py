"""Eight columns: what each engine writes for the same prompts, alone and with the drafter."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dflash2_core import TransformersEngine, load_drafter
from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.assets import tiny_pair
from dflash2_core.conformance.subjects import InThisProcess, Subject
from tests.cross_engine.running import ENGINES, PARALLEL, Running
from tests.cross_engine.texts import Text
from tests.engines.pair import target

OWN = "transformers"
ALL = (OWN, *ENGINES)
TITLES = {OWN: "Transformers (this project's engine)", "vllm": "vLLM", "sglang": "SGLang", "llama-cpp": "llama.cpp"}


@dataclass(frozen=True)
class Column:
    """ids: of each text. counted: what the engine says that it drafted meanwhile; None without a drafter."""

    ids: list[list[int]]
    counted: AcceptanceStats | None

    def identical(self, texts: Sequence[Text]) -> int:
        """How many texts are what the core writes with the target alone."""
        return sum(ids == text.ids for ids, text in zip(self.ids, texts, strict=True))


def column(running: Running, engine: str, texts: Sequence[Text], *, drafts: bool) -> Column:
    """Asks for all texts at once; as many are decoded together as the engine was started for."""
    subject = _subject(running, engine, drafts=drafts)
    before = subject.acceptance() if drafts else None
    answers = subject.generate_ids([text.prompt for text in texts], [text.params for text in texts])
    counted = None if before is None else subject.acceptance().since(before)
    return Column([answer.token_ids for answer in answers], counted)


def version_of(running: Running, engine: str) -> str:
    """In its own words."""
    if engine == OWN:
        return version("transformers")
    return running.engine(engine).probe().version or "unknown"


def _subject(running: Running, engine: str, *, drafts: bool) -> Subject:
    if engine != OWN:
        return running.server(engine, drafts=drafts)
    drafter = load_drafter(tiny_pair().drafter, dtype=target().dtype) if drafts else None
    return InThisProcess(TransformersEngine(target(), drafter, max_batch_size=PARALLEL))
