"""The draws of `Dflash2Worker`, many at once on a small law: run in SGLang's own Python by `test_draws.py`.

The worker's own `_propose` and `_accept_block`, with SGLang's functions behind them; what the two models would say of a block
is given. On this law draws that share a key show: the target wants two ids more than the drafter does (with one alone a
recovery would have nothing to choose).
"""

import json
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dflash2_core import RandomStreams, load_drafter
from dflash2_core.assets import tiny_pair
from dflash2_sglang.cpu.standin import provide_sgl_kernel

BLOCKS, DRAFTS, RANK = 200_000, 3, 4
P = (0.38, 0.27, 0.2, 0.1, 0.05)
Q = (0.25, 0.1, 0.3, 0.3, 0.05)
SHARED = {
    # name of a fault -> what draws of one purpose take instead of their own
    "sound": {},
    "a recovery by the noise of the draft": {"recover": "draft"},
    "a verdict by the noise of the draft": {"accept": "draft"},
    "a recovery by the noise of the verdict": {"recover": "accept"},
    "one noise for all": {"accept": "draft", "recover": "draft", "bonus": "draft"},
}


def main() -> None:
    """Prints one JSON object."""
    provide_sgl_kernel()
    from dflash2_sglang import worker

    sound = worker.RandomStreams
    found: dict[str, Any] = {}
    for name, shared in SHARED.items():
        worker.RandomStreams = sharing(sound, shared)
        blocks = BLOCKS // 2 if shared else BLOCKS
        found[name] = {version: counts(worker, selector, blocks) for version, selector in selectors().items()}
    worker.RandomStreams = sound
    print(json.dumps({"counts": found, "seeds": {version: seeded(worker, each) for version, each in selectors().items()}}))


def selectors() -> dict[str, Any]:
    """DFlash 1 has none; DFlash 2's takes four ids of the five, and scores each by the one before."""
    generator = torch.Generator().manual_seed(8)
    predecessor, successor = (torch.randn(len(Q), RANK, generator=generator) / 4 for _ in range(2))
    books = {"predecessor_codebook": predecessor, "successor_codebook": successor}
    return {"DFlash 1": None, "DFlash 2": SimpleNamespace(top_k=4, hidden_projection=torch.ones_like, **books)}


def sharing(sound: type[RandomStreams], shared: dict[str, str]) -> type[RandomStreams]:
    class Sharing(sound):  # type: ignore[misc, valid-type]
        def uniform(self, positions: Tensor, purpose: Any) -> Tensor:
            return super().uniform(positions, shared.get(str(purpose), purpose))

    return Sharing


def counts(worker: Any, selector: Any, blocks: int) -> list[list[int]]:
    """For each place in a block, and each id before it there (before the first the anchor): how often each id came."""
    tokens, lengths = block(worker, selector, positions=torch.arange(blocks) % 97 + 5, seeds=None)
    found = []
    for place in range(DRAFTS + 1):
        written = tokens[lengths > place]
        before = torch.zeros(len(written)).long() if place == 0 else written[:, place - 1]
        cells = (before * len(P) + written[:, place]).bincount(minlength=len(P) ** 2).view(len(P), -1)
        found += cells[:1].tolist() if place == 0 else cells.tolist()
    return found


def seeded(worker: Any, selector: Any) -> dict[str, bool]:
    """A request that has a seed gets the same tokens alone and beside others; other seeds give others."""
    positions, seeds = torch.arange(64) + 11, torch.arange(64) * 7919 + 3
    together = written(*block(worker, selector, positions, seeds))
    alone = [written(*block(worker, selector, positions[n : n + 1], seeds[n : n + 1]))[0] for n in range(64)]
    reversed_ = written(*block(worker, selector, positions.flip(0), seeds.flip(0)))[::-1]
    others = written(*block(worker, selector, positions, seeds + 1))
    return {"alone": alone == together, "in another order": reversed_ == together, "other seeds": others == together}


def written(tokens: Tensor, lengths: Tensor) -> list[list[int]]:
    return [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def block(worker: Any, selector: Any, positions: Tensor, seeds: Tensor | None) -> tuple[Tensor, Tensor]:
    """One cycle of a batch at these positions [B] -> what was committed [B, L+1], and how much of it [B]."""
    B, anchors = len(positions), torch.zeros(len(positions), dtype=torch.int64)
    asked = SimpleNamespace(
        temperatures=torch.ones(B, 1),
        top_ks=torch.full((B,), 1 << 30, dtype=torch.int32),
        top_ps=torch.ones(B),
        min_ps=torch.zeros(B),
        sampling_seed=seeds,
        logit_bias=None,
    )
    made = object.__new__(worker.Dflash2Worker)
    made._batch, made._committed = SimpleNamespace(reqs=(), sampling_info=asked), positions
    made.config, made.selector, made.block_size = load_drafter(tiny_pair().drafter).config, selector, DRAFTS + 1
    made._fresh = torch.Generator().manual_seed(2)
    said = torch.tensor(Q).log().expand(B, DRAFTS, -1)
    head = SimpleNamespace(weight=torch.ones(1), quant_method=SimpleNamespace(apply=lambda *_: said))
    drafts = made._propose(torch.ones(B, DRAFTS, RANK), head, anchors)
    _, lengths, _, tokens, _ = made._accept_block(
        candidates=torch.cat((anchors[:, None], drafts), dim=1),
        next_token_logits=torch.tensor(P).log().repeat(B * (DRAFTS + 1), 1),
        sampling_info=asked,
        draft_input=None,
        prefix_lens=positions,
        bs=B,
    )
    return tokens, lengths


if __name__ == "__main__":
    main()
