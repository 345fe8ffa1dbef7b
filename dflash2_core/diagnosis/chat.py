"""Chat templates: a drafter that was trained on other turns than the target is asked in keeps fewer drafts."""

from collections.abc import Iterator

from dflash2_core.diagnosis.facts import DrafterSide, TargetSide
from dflash2_core.diagnosis.finding import Finding


def chat_findings(drafter: DrafterSide | None, target: TargetSide) -> Iterator[Finding]:
    """Of the templates that the two bring."""
    if target.chat_template is None:
        if target.sizes is not None:
            yield Finding(
                "note",
                "chat template",
                "the target brings none: an engine refuses chats, or writes them in turns of its own choice",
                "ask for completions, or give the engine the template that the target was trained with",
            )
        return
    ours = drafter.chat_template if drafter is not None else None
    if ours is not None and ours.strip() != target.chat_template.strip():
        yield Finding(
            "warning",
            "chat template",
            "the drafter's is not the target's: it was made for other turns, and in chats fewer drafts are kept",
            "the engine uses the target's; compare the acceptance of chats with what was published",
        )
