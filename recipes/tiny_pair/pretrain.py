"""Trains the tiny target from nothing in a given number of minutes: `python -m recipes.tiny_pair.pretrain`."""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflash2_core.training.muon import Muon
from recipes.tiny_pair.corpus import DOMAINS, Domain, Split, documents
from recipes.tiny_pair.tokenizer import EOS, IM_END, MAX_LENGTH, save_tokenizer, train_tokenizer

MIX: dict[Domain, float] = {"code": 0.37, "docs": 0.35, "arithmetic": 0.28}
TOKENS_PER_STEP = 4096
LENGTHS = ((0.0, 256), (0.5, 512), (0.85, 1024))  # (from this share of the time on, tokens per sequence)
MUON_LR, ADAM_LR, WARMUP = 0.02, 4e-3, 0.02
CONTINUED = 0.6  # of the rates, where training goes on from weights
HELDOUT_SEQUENCES = 40


def target_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, domain: Domain, split: Split) -> Tensor:
    """[N] int64: the domain's documents in a shuffled order, each ended with EOS."""
    texts = documents(domain, split)
    random.Random(1).shuffle(texts)
    encoded = tokenizer([text + EOS for text in texts])["input_ids"]
    return torch.tensor([token for ids in encoded for token in ids])


def batches(streams: dict[Domain, Tensor], length: int, rows: int, generator: torch.Generator) -> Tensor:
    """[rows, length + 1] int64: windows from anywhere in the streams, domains drawn by MIX."""
    names = list(streams)
    weights = torch.tensor([MIX[name] for name in names])
    picks = torch.multinomial(weights, rows, replacement=True, generator=generator).tolist()
    windows = []
    for pick in picks:
        stream = streams[names[pick]]
        start = int(torch.randint(len(stream) - length - 1, (), generator=generator))
        windows.append(stream[start : start + length + 1])
    return torch.stack(windows)


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=MUON_LR, weight_decay=0.01),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def schedule(progress: float) -> float:
    """Linear warm-up, a plateau, then linearly to zero over the last 60 % of the time."""
    return min(1.0, progress / WARMUP, (1 - progress) / 0.6)


def heldout_losses(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, dict[str, float]]:
    """Per domain: nats per token and bits per byte over evenly spaced windows of 512 tokens of the held-out documents."""
    results = {}
    for domain in DOMAINS:
        stream = token_stream(tokenizer, domain, "heldout")
        starts = torch.linspace(0, len(stream) - 514, HELDOUT_SEQUENCES).long()
        windows = torch.stack([stream[start : start + 513] for start in starts.tolist()])
        with torch.inference_mode():
            losses = [language_loss(model, rows) for rows in windows.split(8)]
        nats = sum(loss.item() for loss in losses) / len(losses)
        num_bytes = len("".join(tokenizer.batch_decode(windows[:, 1:])).encode())
        bits_per_byte = nats * 512 * HELDOUT_SEQUENCES / num_bytes / math.log(2)
        results[domain] = {"nats_per_token": round(nats, 4), "bits_per_byte": round(bits_per_byte, 4)}
    return results


def language_loss(model: Qwen3ForCausalLM, rows: Tensor) -> Tensor:
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def train(
    model: Qwen3ForCausalLM, streams: dict[Domain, Tensor], minutes: float, seed: int, peak: float
) -> Iterator[dict[str, float]]:
    """Trains in place until the time is used up; yields a record a step."""
    generator = torch.Generator().manual_seed(seed)
    optims = optimizers(model)
    base_lrs = [group["lr"] for optim in optims for group in optim.param_groups]
    start, step, tokens = time.monotonic(), 0, 0
    while (progress := (time.monotonic() - start) / (minutes * 60)) < 1:
        length = max(length for begin, length in LENGTHS if progress >= begin)
        rows = batches(streams, length, TOKENS_PER_STEP // length, generator)
        loss = language_loss(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        groups = [group for optim in optims for group in optim.param_groups]
        for group, base in zip(groups, base_lrs, strict=True):
            group["lr"] = base * peak * max(schedule(progress), 0.01)
        for optim in optims:
            optim.step()
            optim.zero_grad()
        step, tokens = step + 1, tokens + rows.shape[0] * length
        yield {"step": step, "tokens": tokens, "seconds": round(time.monotonic() - start, 1), "loss": round(loss.item(), 4)}


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(IM_END)]
    GenerationConfig(eos_token_id=stops, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Beside the model's folder, since what is in it travels."""
    text = json.dumps(report, indent=2)
    folder.with_name(f"{folder.name}_report.json").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/tiny_pair/looping"))
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--start", type=Path, help="go on from this folder's weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(arguments.seed)
    start: Path | None = arguments.start
    tokenizer = AutoTokenizer.from_pretrained(start) if start else train_tokenizer(arguments.output)
    streams: dict[Domain, Tensor] = {domain: token_stream(tokenizer, domain, "train") for domain in DOMAINS}
    print({domain: len(stream) for domain, stream in streams.items()}, flush=True)
    if start:
        model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
    else:
        model = Qwen3ForCausalLM(target_config(tokenizer))
    print(f"{model.num_parameters():,} parameters", flush=True)
    record: dict[str, float] = {}
    for record in train(model, streams, arguments.minutes, arguments.seed, CONTINUED if start else 1.0):
        if record["step"] % 20 == 0:
            print(json.dumps(record), flush=True)

    save(model, tokenizer, arguments.output)
    rounded = Qwen3ForCausalLM.from_pretrained(arguments.output, dtype=torch.float32).eval()
    report = {"trained": record, "heldout": heldout_losses(rounded, AutoTokenizer.from_pretrained(arguments.output))}
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
