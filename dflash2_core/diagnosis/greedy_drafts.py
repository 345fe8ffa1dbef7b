"""Drafts taken by argmax above temperature 0: the text keeps its law where the engine verifies rightly, and fewer are kept."""

from collections.abc import Iterator

from dflash2_core.diagnosis.arguments import options_of, vllm_speculation
from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.finding import Finding


def greedy_findings(engine: EngineSide) -> Iterator[Finding]:
    """Of one engine and the arguments that the user gave it."""
    if engine.name == "llama-cpp":
        options = options_of(engine.arguments)
        yield Finding(
            "note",
            "llama-cpp",
            "above temperature 0 it drafts the most probable path all the same: the text is that of plain llama.cpp, and fewer "
            "drafts are kept than by sampling them",
            "nothing to mend; vLLM and SGLang sample their drafts",
        )
        if options.get("--spec-draft-sampling") == "probabilistic":
            reason = (
                "--spec-draft-sampling is probabilistic, and llama.cpp draws no drafts of a DFlash drafter, whatever it says"
            )
            yield Finding("warning", "llama-cpp", reason, "leave it out")
    if engine.name == "vllm":
        asked = vllm_speculation(options_of(engine.arguments)) or {}
        method = asked.get("draft_sample_method")
        if method == "greedy" or (method is None and engine.report.route == "native"):
            said = "is greedy" if method else "is left out, and vLLM's default is greedy"
            yield Finding(
                "warning",
                "vllm",
                f"draft_sample_method {said}: above temperature 0 fewer drafts are kept than by sampling them",
                'say "draft_sample_method": "probabilistic" in --speculative-config',
            )
