"""Canonical tensor names, and why a tensor that is none of them is refused. Section 7 of the reference."""

import re

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
SECOND_VERSION_PARTS = re.compile(r"candidate_selector\.|\.(attention_conv|mlp_conv)\.")

REFUSED = {
    # pattern of a canonical name -> what it tells about the checkpoint
    re.compile(
        r"(scale|scales|scale_inv|qweight|qzeros|g_idx|zero_point|packed|weight_shape|absmax|SCB|quant_map|quant_state.*)$"
    ): "quantised weights are not read; convert the drafter back to bf16, fp16 or fp32 first",
    re.compile(r"^(d2t|t2d|draft_id_to_target_id)$"): "a reduced draft vocabulary is not supported",
    re.compile(r"sink"): "attention sinks are not part of DFlash 1 or 2 as computed here",
    re.compile(r"\.bias$"): "the drafter's layers have no biases",
    re.compile(r"mask_hidden"): "a mask row is read under the name mask_embedding, of shape [hidden_size]",
    re.compile(r"^verifier_"): "it belongs to the target and is not read from a drafter",
}


def canonical(name: str) -> str:
    """The z-lab name of a stored tensor: no `model.` prefix, codebooks without `.weight`."""
    short = name.removeprefix("model.")
    bare = short.removesuffix(".weight")
    return bare if bare in CODEBOOKS else short


def why_refused(name: str, version: int) -> str:
    """The reason for refusing a tensor that the config has no place for."""
    if version == 1 and SECOND_VERSION_PARTS.search(name):
        return "it belongs to DFlash 2 but the config declares DFlash 1, and DFlash 2 never runs as DFlash 1"
    for pattern, reason in REFUSED.items():
        if pattern.search(name):
            return reason
    return "the config has no place for it"
