"""A DFlash 1 drafter for the embedded target, for tests: `python -m recipes.tiny_pair.first_version`.

It begins as the embedded DFlash 2 drafter without its selector and its convolutions, and learns to draft without them from the
responses that `recipes.tiny_pair.build` left in its work folder: each slot's cross-entropy against the target's distribution,
more and more TV; at last TV on arithmetic alone, in two rounds. Greedy responses are left out, and early slots weigh more: it
is there to have drafts accepted above temperature 0, where a slot that cannot know what the slot before drew soon has little to
win, and least where the text is uncertain.
"""

import argparse
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import torch

from dflash2_core import DrafterConfig, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.drafter import Drafter
from dflash2_core.training.documents import Document, load_documents
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.losses import Mix, Objective
from dflash2_core.training.prompts import read_prompts
from dflash2_core.transformers_engine import Target
from recipes.tiny_pair.corpus import DOMAINS

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


def sampled(work: Path, target: Target) -> dict[str, list[Document]]:
    """The responses that were drawn above temperature 0, by domain: the prompts' file has as many of each in a row."""
    documents, _ = load_documents(work / "responses" / "documents.safetensors")
    prompts = read_prompts(work / "training_prompts.jsonl", target.tokenizer)
    domains = [domain for domain in DOMAINS for _ in range(len(prompts) // len(DOMAINS))]
    asked = sorted(zip(prompts, cycle(TEMPERATURES), domains, strict=False), key=lambda each: len(each[0]))
    found: dict[str, list[Document]] = {domain: [] for domain in DOMAINS}
    for document, (prompt, temperature, domain) in zip(documents, asked, strict=True):
        assert document.tokens[: document.prompt_length] == prompt, "the responses are to other prompts"
        if temperature > 0:
            found[domain].append(document)
    return found


def learn(
    drafter: Drafter, target: Target, documents: Sequence[Document], folder: Path, *, minutes: float, rate: float, mix: Mix
) -> None:
    """In place; `folder` keeps the run."""
    settings = Settings(
        minutes=minutes,
        documents=4,
        anchors=32,
        optimizer="muon",
        learning_rate=rate,
        keep_features=True,
        save_every=50,
        objective=Objective(mix=mix, teacher="target", gamma=2.0),
    )
    for record in train(drafter, target, documents, [], settings, folder):
        if record["step"] % 10 == 0:
            print({name: round(value, 3) for name, value in record.items()}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/tiny_pair"))
    parser.add_argument("--output", type=Path, default=Path("runs/first_version"))
    parser.add_argument("--minutes", type=float, default=38, help="on all of it")
    parser.add_argument("--minutes-of-arithmetic", type=float, nargs=2, default=(10, 30), help="in the one round and the other")
    arguments = parser.parse_args()
    pair, output = tiny_pair(), arguments.output
    target = Target.from_pretrained(pair.target, dtype="float32", device="cpu")
    texts = sampled(arguments.work, target)
    drafter = stripped(pair.drafter)
    everything = [document for domain in DOMAINS for document in texts[domain]]
    learn(drafter, target, everything, output / "all", minutes=arguments.minutes, rate=0.002, mix="ce-tv")
    for turn, minutes in enumerate(arguments.minutes_of_arithmetic):
        learn(drafter, target, texts["arithmetic"], output / f"arithmetic {turn}", minutes=minutes, rate=0.001, mix="tv")
    save_drafter(drafter.to(torch.bfloat16), output / "drafter")


if __name__ == "__main__":
    main()
