"""A DFlash 1 drafter for the embedded target, for tests: `python -m recipes.tiny_pair.first_version`.

It begins as the embedded DFlash 2 drafter without its selector and its convolutions, and learns to draft without them from the
responses that `recipes.tiny_pair.build` left in its work folder: each slot's cross-entropy against the target's distribution,
more and more TV. Greedy responses are left out, and early slots weigh more: it is there to have drafts accepted above
temperature 0, where a slot that cannot know what the slot before drew soon has little to win.
"""

import argparse
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch

from dflash2_core import DrafterConfig, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.drafter import Drafter
from dflash2_core.training.documents import Document, load_documents
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.losses import Objective
from dflash2_core.training.prompts import read_prompts
from dflash2_core.transformers_engine import Target

OF_THE_SECOND = ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k")
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # of the responses, as `recipes.tiny_pair.build` dealt them out


def stripped(folder: Path) -> Drafter:
    """The DFlash 2 drafter in `folder` as a DFlash 1 one: the same layers, without what the second version added."""
    whole = load_drafter(folder, dtype=torch.float32)
    options = whole.config.to_dict()
    options["architectures"] = ["DFlashDraftModel"]
    for name in OF_THE_SECOND:
        options["dflash_config"].pop(name)
    drafter = Drafter(DrafterConfig.from_dict(options))
    drafter.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if name in drafter.state_dict()})
    return drafter


def sampled(work: Path, target: Target) -> Iterator[Document]:
    """The responses that were drawn above temperature 0."""
    documents, _ = load_documents(work / "responses" / "documents.safetensors")
    prompts = read_prompts(work / "training_prompts.jsonl", target.tokenizer)
    asked = sorted(zip(prompts, cycle(TEMPERATURES), strict=False), key=lambda pair: len(pair[0]))
    for document, (prompt, temperature) in zip(documents, asked, strict=True):
        assert document.tokens[: document.prompt_length] == prompt, "the responses are to other prompts"
        if temperature > 0:
            yield document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/tiny_pair"))
    parser.add_argument("--output", type=Path, default=Path("runs/first_version"))
    parser.add_argument("--minutes", type=float, default=38)
    arguments = parser.parse_args()
    pair = tiny_pair()
    target = Target.from_pretrained(pair.target, dtype="float32", device="cpu")
    settings = Settings(
        minutes=arguments.minutes,
        documents=4,
        anchors=32,
        optimizer="muon",
        learning_rate=0.002,
        keep_features=True,
        save_every=50,
        objective=Objective(mix="ce-tv", teacher="target", gamma=2.0),
    )
    drafter = stripped(pair.drafter)
    for record in train(drafter, target, list(sampled(arguments.work, target)), [], settings, arguments.output):
        if record["step"] % 10 == 0:
            print({name: round(value, 3) for name, value in record.items()}, flush=True)
    save_drafter(drafter.to(torch.bfloat16), arguments.output / "drafter")


if __name__ == "__main__":
    main()
