"""Keys that scale embeddings and logits: an engine that does not read one drafts badly, and says nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from dflash2_core.config.zlab import SCALES
from dflash2_core.diagnosis.facts import DrafterSide, EngineSide
from dflash2_core.diagnosis.finding import Finding

SECTION = "dflash_config"
UNREAD = {"sglang": ("input_embedding_scale",)}
"""Of an engine that runs DFlash 2 by itself: what it reads nowhere."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


def scale_findings(engine: EngineSide, drafter: DrafterSide) -> Iterator[Finding]:
    """The plugins give their engines what the core read; by themselves vLLM and SGLang look into `dflash_config` alone."""
    if engine.name not in TITLES or engine.report.route != "native":
        return
    title = TITLES[engine.name]
    for name in stated_scales(drafter.document):
        if name in UNREAD.get(engine.name, ()):
            mend = "take another engine"
            yield Finding("error", engine.name, f"{name} is not read by {title}: its drafts would be useless", mend)
        elif drafter.layout == "speculators":
            yield Finding(
                "error",
                engine.name,
                f"{name} stands in a config of the layout speculators, and {title} loses it as it converts the config",
                f"give it the layout zlab: dflash2 convert {drafter.path} OUT --to zlab",
            )
        elif name not in _section(drafter.document):
            yield Finding(
                "error",
                engine.name,
                f"{name} stands beside {SECTION}, and {title} reads it inside of it alone: its drafts would be useless",
                f"move it into {SECTION}; dflash2 convert {drafter.path} OUT --to zlab writes it there",
            )


def stated_scales(document: Mapping[str, Any]) -> list[str]:
    """The scale keys of a config.json that change something, wherever they stand."""
    section = _section(document)
    found = {name: section.get(name, document.get(name)) for name in SCALES}
    return [name for name, value in found.items() if value and value != SCALES[name]]


def _section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    section = document.get(SECTION)
    return section if isinstance(section, Mapping) else {}
