"""Trains a drafter for a target of your own and tries it: the target answers some prompts, the drafter learns to draft answers.

    python examples/train_drafter.py --output runs/first                       # for the target that comes with dflash2
    python examples/train_drafter.py --target MODEL --prompts prompts.jsonl --output runs/mine --steps 20000

Thirty steps show that it works and no more. A good drafter wants tens of thousands of prompts like those that it will meet.
`dflash2 train` is the same with every option, a progress bar, and checkpoints to go on from.
"""

import argparse
from itertools import islice
from pathlib import Path

from dflash2_core import AcceptanceStats, SamplingParams, TransformersEngine, save_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.training.documents import Document
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.responses import Responses, documents_for
from dflash2_core.training.shape import Shape, config_for
from dflash2_core.training.start import copy_from_target, new_drafter
from dflash2_core.transformers_engine import Target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=tiny_pair().target)
    parser.add_argument("--prompts", type=Path, help="one a line, or .jsonl with text or messages")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()

    asked.output.mkdir(parents=True, exist_ok=True)
    if asked.prompts is None:
        asked.prompts = asked.output / "prompts.txt"
        asked.prompts.write_text("\n".join(prompt["text"].replace("\n", " ") for prompt in islice(held_out_prompts(), 24)))

    target = Target.from_pretrained(asked.target)
    texts: list[Document] = []
    answers = Responses(prompts=asked.prompts, temperatures=(0, 0.7), max_new_tokens=48)
    for share in documents_for(target, answers, asked.output / "texts.safetensors", texts):
        print(f"the target has written {share:.0%} of its answers")
    drafter = new_drafter(config_for(target, Shape()), seed=0).to(target.device)
    copy_from_target(drafter, target)
    settings = Settings(steps=asked.steps, documents=4, anchors=16, learning_rate=2e-3)
    for record in train(drafter, target, texts, [], settings, asked.output):
        if record["step"] % 10 == 0:
            print(f"step {record['step']}: total variation {record['tv']:.3f}")
    save_drafter(drafter, asked.output / "drafter")

    prompts = [text.tokens[: text.prompt_length] for text in texts[:4]]
    written = TransformersEngine(target, drafter).generate(prompts, SamplingParams(max_new_tokens=48))
    length = AcceptanceStats.total(completion.stats for completion in written).mean_acceptance_length
    print(f"{asked.output / 'drafter'}: acceptance length {length:.2f}")


if __name__ == "__main__":
    main()
