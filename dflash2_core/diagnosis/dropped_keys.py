"""Keys of a drafter's config that an engine by itself does not read: it drafts badly, and says nothing.

dflash2's plugins give their engines what the core read; nothing is dropped there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dflash2_core.config.attention import SLIDING
from dflash2_core.config.reading import placed
from dflash2_core.config.zlab import SCALES
from dflash2_core.diagnosis.facts import DrafterSide, EngineSide
from dflash2_core.diagnosis.finding import Finding

SECTION = "dflash_config"
UNREAD = {"sglang": ("input_embedding_scale",)}
"""Of an engine that runs DFlash 2 by itself: what it reads nowhere."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


def dropped_key_findings(engine: EngineSide, drafter: DrafterSide) -> Iterator[Finding]:
    """Of vLLM and SGLang where they run DFlash 2 by themselves."""
    if engine.name in TITLES and engine.report.route == "native":
        yield from _scales(engine.name, drafter)
        yield from _lifted_windows(engine.name, drafter)


def _scales(name: str, drafter: DrafterSide) -> Iterator[Finding]:
    """Both look into `dflash_config` alone."""
    title, mend = TITLES[name], f"dflash2 convert {placed(drafter.path)} OUT --to zlab"
    for key in stated_scales(drafter.document):
        if key in UNREAD.get(name, ()):
            yield Finding("error", name, f"{key} is not read by {title}: its drafts would be useless", "take another engine")
        elif drafter.layout == "speculators":
            reason = f"{key} stands in a config of the layout speculators, and {title} loses it as it converts the config"
            yield Finding("error", name, reason, f"give it the layout zlab: {mend}")
        elif key not in _section(drafter.document):
            reason = f"{key} stands beside {SECTION}, and {title} reads it inside of it alone: its drafts would be useless"
            yield Finding("error", name, reason, f"write it into {SECTION}: {mend}")


def _lifted_windows(name: str, drafter: DrafterSide) -> Iterator[Finding]:
    types = drafter.document.get("layer_types")
    if drafter.document.get("use_sliding_window") is False and isinstance(types, list) and SLIDING in types:
        yield Finding(
            "error",
            name,
            f"use_sliding_window is false, which lifts the windows of its layers, and {TITLES[name]} slides them all the same",
            f"call the layers what they are: dflash2 convert {placed(drafter.path)} OUT --to zlab",
        )


def stated_scales(document: Mapping[str, Any]) -> list[str]:
    """The scale keys of a config.json that change something, wherever they stand."""
    section = _section(document)
    found = {name: section.get(name, document.get(name)) for name in SCALES}
    return [name for name, value in found.items() if value and value != SCALES[name]]


def _section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    section = document.get(SECTION)
    return section if isinstance(section, Mapping) else {}
