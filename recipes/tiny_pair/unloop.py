"""Teaches the target to leave its loops: `python -m recipes.tiny_pair.unloop`.

A small model's greedy text soon repeats itself. Here it writes greedily, and where a token completes an 8-gram that stood in
the text before, its probability is pushed down (sequence-level unlikelihood, Welleck et al. 2019, arXiv 1908.04319); beside it
the ordinary loss on the corpus goes on. The result is the mean of the weights before and after (Wortsman et al. 2022, arXiv
2109.01903): it gives back most of the loss that the lesson cost and keeps half of what it taught.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM

from dflash2_core.training.documents import Batch, Document, collate
from dflash2_core.training.prompts import read_prompts
from dflash2_core.training.regenerate import regenerate
from dflash2_core.transformers_engine import Target
from recipes.tiny_pair.corpus import DOMAINS
from recipes.tiny_pair.measure import NGRAM
from recipes.tiny_pair.pretrain import (
    batches,
    heldout_losses,
    language_loss,
    optimizers,
    save,
    schedule,
    token_stream,
    write_report,
)

PEAK = 0.2  # of the rates of pretraining
SHARE = 0.5  # of the weights after it in the mean
WEIGHT = 1.0  # of the unlikelihood
PROMPTS_A_ROUND, NEW_TOKENS = 64, 128
DOCUMENTS_A_STEP, WINDOWS_A_STEP, WINDOW = 16, 8, 256


def repeats(document: Document) -> list[bool]:
    """For each token: does it end an 8-gram of the response that stood there before?"""
    seen: set[tuple[int, ...]] = set()
    marks = [False] * len(document.tokens)
    for end in range(document.prompt_length + NGRAM, len(document.tokens) + 1):
        gram = tuple(document.tokens[end - NGRAM : end])
        marks[end - 1] = gram in seen
        seen.add(gram)
    return marks


def unlikelihood(model: Qwen3ForCausalLM, batch: Batch, marks: Tensor) -> Tensor:
    """The mean of -log(1 - p) over the marked tokens [D, T]; 0 if there are none."""
    logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
    log_p = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None])[..., 0]
    losses = -torch.log1p(-log_p.exp().clamp(max=1 - 1e-4))
    return (losses * marks[:, 1:]).sum() / marks.sum().clamp(min=1)


def unloop(target: Target, prompts: Sequence[list[int]], minutes: float, seed: int) -> Iterator[dict[str, float]]:
    """Trains the target's model in place until the time is used up; yields a record a round of writing and learning."""
    model, rng, generator = target.model, random.Random(seed), torch.Generator().manual_seed(seed)
    streams = {domain: token_stream(target.tokenizer, domain, "train") for domain in DOMAINS}
    optims = optimizers(model.requires_grad_(True))
    groups = [(group, group["lr"]) for optim in optims for group in optim.param_groups]
    start, step = time.monotonic(), 0
    while (progress := (time.monotonic() - start) / (minutes * 60)) < 1:
        chosen = rng.sample(prompts, min(len(prompts), PROMPTS_A_ROUND))
        greedy = {"temperatures": [0.0], "max_new_tokens": NEW_TOKENS, "batch_size": PROMPTS_A_ROUND, "seed": 0}
        texts = list(regenerate(target, chosen, **greedy))
        rng.shuffle(texts)
        for first in range(0, len(texts), DOCUMENTS_A_STEP):
            step_texts = texts[first : first + DOCUMENTS_A_STEP]
            marks = [torch.tensor(repeats(text)) for text in step_texts]
            marked = torch.nn.utils.rnn.pad_sequence(marks, batch_first=True)
            loss = language_loss(model, batches(streams, WINDOW, WINDOWS_A_STEP, generator))
            (loss + WEIGHT * unlikelihood(model, collate(step_texts), marked)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group, rate in groups:
                group["lr"] = rate * PEAK * schedule(max(progress, 0.005))
            for optim in optims:
                optim.step()
                optim.zero_grad()
            step += 1
        share = sum(sum(repeats(text)) for text in texts) / sum(len(t.tokens) - t.prompt_length for t in texts)
        yield {
            "step": step,
            "seconds": round(time.monotonic() - start, 1),
            "loss": round(loss.item(), 4),
            "repeated": round(share, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("runs/tiny_pair/looping"))
    parser.add_argument("--prompts", type=Path, default=Path("runs/tiny_pair/training_prompts.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("runs/tiny_pair/target"))
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.start)
    target = Target.from_pretrained(arguments.start, dtype="float32", device="cpu")
    before = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    for record in unloop(target, read_prompts(arguments.prompts, tokenizer), arguments.minutes, seed=0):
        print(json.dumps(record), flush=True)
    target.model.load_state_dict({name: before[name].lerp(after, SHARE) for name, after in target.model.state_dict().items()})
    save(target.model, tokenizer, arguments.output)
    rounded = Qwen3ForCausalLM.from_pretrained(arguments.output, dtype=torch.float32).eval()
    report = {"trained": record, "heldout": heldout_losses(rounded, tokenizer)}
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
