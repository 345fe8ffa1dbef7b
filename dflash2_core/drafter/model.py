"""The drafter: from the target's features and an anchor to a block of drafts."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.attention import Attend
from dflash2_core.drafter.compiling import compiled
from dflash2_core.drafter.context import ContextViews, DrafterContext, Place
from dflash2_core.drafter.health import sums
from dflash2_core.drafter.layer import DrafterLayer
from dflash2_core.drafter.rotary import RotaryEmbedding
from dflash2_core.drafter.selector import CandidateSelector, best_candidates
from dflash2_core.proposal import Proposal
from dflash2_core.sampling import RandomStreams, draw

Embed = Callable[[Tensor], Tensor]
"""ids [..] int64 -> the target's raw embedding rows [.., H], unscaled."""

Head = Callable[[Tensor], Tensor]
"""hidden [.., H] -> the target's raw logits [.., >= V], without its own scale or softcap."""

OWN_EMBEDDING, OWN_HEAD, OWN_MASK = "embed_tokens.weight", "lm_head.weight", "mask_embedding"


class Rows(NamedTuple):
    """What is drafted for, a row each.

    anchors      [B] int64, at `positions` [B] int64
    drafts       [B] int64, how many are asked
    finite       [B] bool, False where the context holds numbers that are not
    temperature  [B] float
    uniforms     [B, L] float64, or None: every row takes the argmax
    """

    anchors: Tensor
    positions: Tensor
    drafts: Tensor
    finite: Tensor
    temperature: Tensor
    uniforms: Tensor | None


class Drafter(nn.Module):
    """A DFlash 2 drafter (or DFlash 1: no convolutions, no selector). Parameter names are those of the z-lab layout.

    config  what it is
    own     the optional tensors that its checkpoint brings instead of borrowing the target's: `embed_tokens.weight`,
            `lm_head.weight`, `mask_embedding`
    """

    def __init__(self, config: DrafterConfig, own: Collection[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.commit, self._draft = self._commit, self._draft_block
        self.is_compiled = False
        H, V = config.hidden_size, config.vocab_size
        self.fc = nn.Linear(len(config.target_layer_ids) * config.target_hidden_size, H, bias=False)
        self.hidden_norm = nn.RMSNorm(H, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(H, eps=config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config)
        self.candidate_selector = CandidateSelector(config) if config.version == 2 else None
        self.embed_tokens = nn.Embedding(V, H) if OWN_EMBEDDING in own else None
        self.lm_head = nn.Linear(H, V, bias=False) if OWN_HEAD in own else None
        self.mask_embedding = nn.Parameter(torch.zeros(H)) if OWN_MASK in own else None

    def new_context(self, max_rows: int = 1) -> DrafterContext:
        """An empty context for up to `max_rows` requests, on the drafter's device and in its dtype."""
        return DrafterContext(self, max_rows)

    def encode_taps(self, taps: Tensor) -> Tensor:
        """taps [R, T, n_taps * H_target], in the config's order -> features c [R, T, H]"""
        features: Tensor = self.hidden_norm(self.fc(taps.to(self.fc.weight.dtype)))
        return features

    def context_kv(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """features [R, T, H] at positions [R, T] -> per layer k and v [R, kv_heads, T, head_dim].

        Neither the input norm nor the convolution acts on features.
        """
        rotation = self.rotary(positions, features.dtype)
        return [layer.keys_values(features, rotation) for layer in cast(Iterable[DrafterLayer], self.layers)]

    def _commit(self, taps: Tensor, place: Place) -> Tensor:
        """Write what taps [n, T, n_taps * H_target] come to; returns [n] bool: whether all that a row commits is finite."""
        features = self.encode_taps(taps)
        offsets = torch.arange(taps.shape[1], device=taps.device)
        place.write(self.context_kv(features, place.lengths[:, None] + offsets), taps.shape[1])
        return torch.where(offsets < place.counts[:, None], sums(features), 0).isfinite().all(-1)

    def embed(self, ids: Tensor, embed: Embed) -> Tensor:
        """ids [R, L] int64 -> the block's input rows [R, L, H], scaled, with the drafter's own table or mask row if any."""
        rows = embed(ids) if self.embed_tokens is None else self.embed_tokens(ids)
        rows = rows.to(self.fc.weight.dtype)
        if self.mask_embedding is not None:
            rows = torch.where((ids == self.config.mask_token_id)[..., None], self.mask_embedding, rows)
        return rows * self.config.input_embedding_scale if self.config.input_embedding_scale != 1.0 else rows

    def hidden(self, rows: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The block's input rows [R, L, H] at positions [R, L] -> final hidden states [R, L, H]; one block a row."""
        rotation = self.rotary(positions, rows.dtype)
        for layer in self.layers:
            rows = layer(rows, rotation, attend)
        hidden: Tensor = self.norm(rows)
        return hidden

    def logits(self, hidden: Tensor, head: Head) -> Tensor:
        """hidden [.., H] -> logits [.., V] after scale and softcap, with the drafter's own head if it has one."""
        return shaped_logits(head(hidden) if self.lm_head is None else self.lm_head(hidden), self.config)

    @torch.inference_mode()
    def propose(
        self,
        context: DrafterContext,
        anchors: Tensor,
        lengths: Sequence[int] | Tensor,
        *,
        embed: Embed,
        head: Head,
        temperature: Tensor,
        streams: RandomStreams | None,
    ) -> Proposal:
        """Draft a block for the first B rows of the context.

        anchors      [B] int64, each row's last committed token, at position context.lengths[row]
        lengths      [B], drafts asked per row, 0 .. num_drafts; rows may differ. Keep it on the CPU: it is read
        embed, head  the target's
        temperature  [B] float, 0 for greedy rows
        streams      the draws of the sampled rows; None: every row takes the argmax, q is one-hot
        Returns drafts for the lengths asked, except that a row with non-finite features, hidden states or logits gets 0.
        Without rows the proposal is empty. Raises ValueError for more drafts than a block holds, or more rows than the
        context's.
        """
        asked = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        B, device = len(asked), anchors.device
        if not 0 <= min(asked, default=0) <= max(asked, default=0) <= self.config.num_drafts:
            raise ValueError(
                f"drafts asked per row: {asked}; a block of {self.config.block_size} holds 0 to {self.config.num_drafts}"
            )
        if context.active < B:
            raise ValueError(f"drafts asked for {B} rows, but {context.active} rows of the context are in use")
        L = max(asked, default=0)
        if L == 0:
            return Proposal(tokens=anchors.new_zeros(B, 0), lengths=torch.tensor(asked, dtype=torch.int64, device=device))
        block = self.config.block_size if self.is_compiled else L + 1  # one shape of block: compiled once
        views = context.views([n + 1 for n in asked], block)
        committed, drafts = torch.tensor([context.lengths[:B], asked])  # on the CPU, where draws are cheapest
        uniforms = None
        if streams is not None:
            uniforms = streams.uniform(committed[:, None] + torch.arange(1, block), "draft").to(device, non_blocking=True)
        rows = Rows(
            anchors=anchors,
            positions=committed.to(device, non_blocking=True),
            drafts=drafts.to(device, non_blocking=True),
            finite=context.finite[:B],
            temperature=temperature,
            uniforms=uniforms,
        )
        proposal = self._draft(rows, views, block, embed, head)
        return proposal if block == L + 1 else _cut(proposal, L)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let `torch.compile` make programs of the drafter's steps as they are first used: minutes, and a C++ compiler.

        args, kwargs  those of `torch.compile`; without any it is told, on a CPU, what pays for the few rows of a block: the
                      weights, the target's head among them, are then in memory a second time
        Weights must not change afterwards. Drafts may then differ where scores are equal to the last bits; they are verified
        as ever.
        """
        device = self.fc.weight.device
        self._draft = compiled(self._draft_block, device, args, kwargs)
        self.commit = compiled(self._commit, device, args, kwargs)
        self.is_compiled = True

    def _draft_block(self, rows: "Rows", views: ContextViews, block: int, embed: Embed, head: Head) -> Proposal:
        ids = F.pad(rows.anchors[:, None], (0, block - 1), value=self.config.mask_token_id)
        positions = rows.positions[:, None] + torch.arange(block, device=ids.device)
        attend = views.attention(rows.positions, rows.drafts + 1, block)
        hidden = self.hidden(self.embed(ids, embed), positions, attend)
        # The anchor's row goes through the head for nothing: a block cut by a row would be copied first.
        hidden, logits = hidden[:, 1:], self.logits(hidden, head)[:, 1:]
        lengths = torch.where(rows.finite, rows.drafts, 0)
        return self._choose(hidden, logits, rows.anchors, lengths, rows.temperature, rows.uniforms)

    def _choose(
        self,
        hidden: Tensor,
        logits: Tensor,
        anchors: Tensor,
        lengths: Tensor,
        temperature: Tensor,
        uniforms: Tensor | None,
    ) -> Proposal:
        # A NaN or an infinity among a row's logits is among its best, so the K best tell of all V; and it shows in any sum.
        candidates = None
        if self.candidate_selector is None:
            tokens, probs = each_slot_alone(logits, temperature, uniforms)
            scores = logits.amax(-1)
        else:
            tokens, candidates, probs, scores = self.candidate_selector(hidden, logits, anchors, temperature, uniforms)
        finite = (scores + sums(hidden)).isfinite()
        asked = torch.arange(tokens.shape[1], device=lengths.device) < lengths[:, None]
        finite = (finite | ~asked).all(-1)
        return Proposal(
            tokens=tokens,
            lengths=torch.where(finite, lengths, 0),
            candidates=candidates,
            probs=probs,
        )


def _cut(proposal: Proposal, L: int) -> Proposal:
    """The first L drafts of each row."""
    candidates, probs = (None if part is None else part[:, :L] for part in (proposal.candidates, proposal.probs))
    return Proposal(tokens=proposal.tokens[:, :L], lengths=proposal.lengths, candidates=candidates, probs=probs)


def shaped_logits(raw: Tensor, config: DrafterConfig) -> Tensor:
    """What a head says, [.., >= V] -> the drafter's logits [.., V]: cut to the ids that exist, scaled, capped."""
    logits = raw[..., : config.vocab_size]  # a padded head must not offer ids that do not exist
    if config.output_multiplier != 1.0:
        logits = logits * config.output_multiplier
    softcap = config.final_logit_softcapping
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def each_slot_alone(logits: Tensor, temperature: Tensor, uniforms: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """DFlash 1: logits [B, L, V], temperature [B], uniforms [B, L] or None (every row takes the argmax) -> tokens [B, L] and,
    where there are uniforms, q over the whole vocabulary [B, L, V]."""
    best = best_candidates(logits, 1)[1][..., 0]
    if uniforms is None:
        return best, None
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    T = temperature.to(logits.dtype)[:, None, None]
    greedy = T <= 0
    best_first = logits - logits.amax(-1, keepdim=True)  # the best is 0: no temperature overflows it
    q = (best_first / T.masked_fill(greedy, 1.0)).softmax(-1)
    q = torch.where(greedy, F.one_hot(best, logits.shape[-1]).to(q.dtype), q)
    return draw(q, uniforms).clamp(min=0), q
