"""May one use the drafter as one means to? Said plainly; what a licence allows is for its text to say."""

import re
from collections.abc import Iterator

from dflash2_core.config.reading import named
from dflash2_core.diagnosis.facts import DrafterSide
from dflash2_core.diagnosis.finding import Finding

SUBJECT = "licence"
FREE = {"apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "unlicense", "isc", "zlib", "wtfpl", "0bsd", "bsd", "bsl-1.0"}
OWN_TERMS = {"other", "unknown", "custom", "proprietary"}
MEANS = {
    # part of a licence's name -> what it says
    "nc": "not for commercial use",
    "nd": "changed copies may not be passed on, and a conversion, a GGUF or a further training may be one",
    "sa": "changed copies stay under the same licence",
}


def licence_findings(drafter: DrafterSide) -> Iterator[Finding]:
    """Of what the model card, the manifest or the GGUF states."""
    stated = drafter.licences
    if not stated:
        if drafter.config is None:  # it may not even be a drafter
            return
        yield Finding(
            "note",
            SUBJECT,
            "the drafter states none, in no model card, manifest or general.license: it may not be free",
            "ask whoever made it before you pass it on",
        )
        return
    if len({_plain(licence) for licence in stated.values()}) > 1:
        told = ", ".join(f"{named(licence)} in {place}" for place, licence in stated.items())
        yield Finding("warning", SUBJECT, f"the drafter states several: {told}", "ask whoever made it which one holds")
    for licence in dict.fromkeys(_plain(licence) for licence in stated.values()):
        yield from _of(licence)


def _of(licence: str) -> Iterator[Finding]:
    parts = set(licence.split("-"))
    restrictions = [meaning for part, meaning in MEANS.items() if part in parts and "cc" in parts]
    if "non" in parts or "noncommercial" in parts or "research" in parts:
        restrictions.append(MEANS["nc"])
    if restrictions:
        reason = f"the drafter is under {_shown(licence)}: {'; '.join(dict.fromkeys(restrictions))}"
        yield Finding("warning", SUBJECT, reason, "read its text, and take another drafter if that is not what you need")
    elif licence in OWN_TERMS:
        reason = f"the drafter is under terms of its own ({named(licence)})"
        yield Finding("warning", SUBJECT, reason, "read them in its model card before you serve others with it")
    elif licence not in FREE and not licence.startswith("bsd-"):
        reason = f"the drafter is under {named(licence)}, which has conditions"
        yield Finding("note", SUBJECT, reason, "read its text before you pass it on")


def _plain(licence: str) -> str:
    """As model cards write it: cc-by-nc-nd-4.0."""
    return re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-")


def _shown(licence: str) -> str:
    if not licence.startswith("cc-"):
        return named(licence)
    *parts, version = licence.split("-")
    names = "-".join(part.upper() for part in parts[1:]) if version[:1].isdigit() else licence[3:].upper()
    return f"CC {names} {version if version[:1].isdigit() else ''}".strip()
