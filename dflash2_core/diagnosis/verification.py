"""Requests that an engine's own verification does not honour: their text follows another law, and nothing says so."""

from collections.abc import Iterator

from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.finding import Finding


def verification_findings(engine: EngineSide) -> Iterator[Finding]:
    """Of an engine that runs DFlash 2 by itself; the plugins verify by the core's rules."""
    if engine.name == "sglang" and engine.report.route == "native":
        yield Finding(
            "warning",
            "sglang",
            "its own verification passes over min_p and applies no penalties: requests with either get another text than plain "
            "SGLang's (seen in 0.5.23)",
            "ask for neither, or serve those requests without the drafter",
        )
