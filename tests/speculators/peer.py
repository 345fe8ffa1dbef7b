"""speculators itself, in its own Python: loads folders, says what it found, and drafts with them.

Reads a JSON list of jobs, {folder, inputs, outputs}, from standard input; writes for each a safetensors file `outputs` and
prints what it read of the config. Its own modules compute all of it; here is only the greedy walk over its selector's scores.
"""

import json
import sys
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig


@torch.inference_mode()
def main() -> None:
    for job in json.load(sys.stdin):
        torch.set_default_dtype(torch.float32)
        print("told", json.dumps(run(**job)), flush=True)


def run(folder: str, inputs: str, outputs: str) -> dict[str, Any]:
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # the default is compiled, for training
    stored = SpeculatorModel.from_pretrained(folder, config=config, dtype="auto")
    weights = {name: tensor.clone() for name, tensor in stored.state_dict().items() if tensor is not None}
    model = stored.float().eval()
    given = load_file(inputs)
    if "embedding" in given:  # no target is named from which it would take them
        model.embed_tokens.weight.data = given["embedding"]
        model.lm_head.weight.data = given["head"]
    blocks = [block(model, given, anchor) for anchor in given["anchors"].tolist()]
    logits, drafts = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    save_file(weights | {"logits": logits, "drafts": drafts}, outputs)
    keys = ("aux_hidden_state_layer_ids", "mask_token_id", "block_size", "sliding_window_non_causal")
    return {"class": type(model).__name__, **{key: getattr(config, key) for key in keys}}


def block(model: Any, given: dict[str, torch.Tensor], anchor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [B - 1, V] and greedy drafts [B - 1] of the block whose anchor is the token at that position."""
    taps, ids = given["taps"][None], given["ids"][None]
    only = torch.zeros_like(ids)
    only[0, anchor] = 1
    hidden, logits, *_ = model._backbone_forward(
        hidden_states=taps,
        input_ids=ids,
        loss_mask=only,
        verifier_last_hidden_states=torch.zeros(*ids.shape, model.hidden_size),
        document_ids=torch.zeros_like(ids),
        max_anchors=1,
    )
    if not hasattr(model, "candidate_selector"):
        return logits[0, 1:], logits[0, 1:].argmax(-1)
    path = [ids[0, anchor]]
    for row in range(1, model.block_size):
        candidates, scores = model.candidate_selector.select(logits[0, row], hidden[0, row], path[-1])
        path.append(candidates[scores.argmax()])
    return logits[0, 1:], torch.stack(path[1:])


main()
