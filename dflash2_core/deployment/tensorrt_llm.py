"""TensorRT-LLM: `speculative_config` of a YAML file for trtllm-serve."""

import json

from dflash2_core.deployment.recipe import Pair, Recipe, block_in_words

CHECKED = "the reference of DFlashDecodingConfig in NVIDIA's documentation of TensorRT-LLM 1.3.0rc27 and 1.4.0rc1"
NOTES = (
    "start it with: trtllm-serve TARGET --backend pytorch --config FILE (releases from 1.3.0rc28 on, a GPU)",
    "target_layer_ids is left to the drafter's own config: the reference does not say whether it counts outputs or inputs of "
    "layers, and one layer off costs acceptance without a message",
    "the reference describes DFlash and names no convolution and no selector: before you rely on it look at the acceptance "
    "length, which falls to nearly 1 where a DFlash 2 drafter is run as DFlash 1",
)


def tensorrt_llm(pair: Pair) -> Recipe:
    """max_draft_len counts drafts."""
    checkpoint = pair.checkpoint(needs_zlab="TensorRT-LLM")
    keys = {
        "decoding_type": "DFlash",
        "max_draft_len": checkpoint.config.num_drafts,
        "speculative_model": json.dumps(pair.place, ensure_ascii=False),  # a JSON string is one of YAML's
        "mask_token_id": checkpoint.config.mask_token_id,
    }
    lines = ["speculative_config:", *(f"  {name}: {value}" for name, value in keys.items())]
    return Recipe(
        engine="tensorrt-llm",
        kind="file",
        file="dflash2.yaml",
        text="\n".join(lines),
        counts=block_in_words(checkpoint, "max_draft_len", checkpoint.config.num_drafts),
        checked=CHECKED,
        run=False,
        notes=NOTES,
    )
