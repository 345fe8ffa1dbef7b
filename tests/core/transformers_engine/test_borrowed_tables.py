"""What a drafter borrows of its target, the embedding and the head: plain, tied, padded, scaled, quantised."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from dflash2_core import Completion, Drafter, Proposal, SamplingParams, TransformersEngine
from dflash2_core.transformers_engine import Target
from tests.core.toys import VOCABULARY, drafter_config, random_drafter, randomise, toy_model
from tests.core.transformers_engine.conftest import random_prompt
from tests.core.transformers_engine.kinds import target_of
from tests.core.transformers_engine.test_stopping import LETTERS

FITS = {"num_target_layers": 3, "target_layer_ids": (1,)}
PADDED = 40  # rows, of which the last three are nobody's
PROMPTS = [random_prompt(length, seed=length) for length in (9, 2)]
H = 16


def codes(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random int8 codes of 4 bits [rows, H] and a scale a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 8, (rows, H), generator=generator, dtype=torch.int8), 0.1 + torch.rand(rows, generator=generator)


class HeadOfNibbles(nn.Module):
    """[H / 2, rows] bytes, two codes in each, and a bias that wants the padding above all."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__()
        self.codes, self.scale = codes(rows, seed)
        low, high = (self.codes.T[i::2].int() & 15 for i in range(2))
        self.weight = nn.Parameter((low | high << 4).to(torch.uint8), requires_grad=False)
        self.bias = nn.Parameter(100.0 * (torch.arange(rows) >= VOCABULARY), requires_grad=False)

    def dequantised(self) -> Tensor:
        nibbles = torch.stack((self.weight & 15, self.weight >> 4), dim=1).flatten(0, 1).to(torch.int8)
        return (torch.where(nibbles > 7, nibbles - 16, nibbles) * self.scale).T

    def apply_packed(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.dequantised(), self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.apply_packed(hidden)


class HeadOfBytes(nn.Module):
    """Codes in the very shape of the weights: a product with them does not even fail."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__()
        self.codes, self.scale = codes(rows, seed)
        self.weight = nn.Parameter(self.codes, requires_grad=False)

    def dequantised(self) -> Tensor:
        return self.weight * self.scale[:, None]

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.dequantised())


class TableOfBytes(HeadOfBytes):
    """An embedding; `embed_scale` as Gemma's have it."""

    def __init__(self, rows: int, seed: int, embed_scale: float | None = None) -> None:
        super().__init__(rows, seed)
        if embed_scale is not None:
            self.embed_scale = embed_scale

    def forward(self, ids: Tensor) -> Tensor:
        return self.dequantised()[ids] * getattr(self, "embed_scale", 1.0)


class Noting(Drafter):
    """Keeps what it proposed."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter.config)
        self.load_state_dict(drafter.state_dict())
        self.requires_grad_(False)
        self.proposals: list[Proposal] = []

    def propose(self, *asked: object, **options: object) -> Proposal:  # type: ignore[override]
        self.proposals.append(super().propose(*asked, **options))  # type: ignore[arg-type]
        return self.proposals[-1]


def written(model: PreTrainedModel, **changes: object) -> tuple[list[Completion], list[Proposal]]:
    drafter = Noting(random_drafter(seed=2, **FITS, **changes))
    params = [SamplingParams(max_new_tokens=16, ignore_eos=True, temperature=temperature, seed=5) for temperature in (0.0, 1.0)]
    completions = TransformersEngine(Target(model), drafter, max_batch_size=2).generate(PROMPTS, params)
    return completions, drafter.proposals


def assert_as_dequantised(packed: PreTrainedModel, plain: PreTrainedModel, **changes: object) -> None:
    """The same text and, cycle by cycle, the same drafts from the same candidates."""
    (ours, our_drafts), (theirs, their_drafts) = (written(model, **changes) for model in (packed, plain))
    assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    assert [c.stats for c in ours] == [c.stats for c in theirs]
    assert all(c.stats.num_drafted > 20 for c in ours)
    assert len(our_drafts) == len(their_drafts) > 10
    for mine, its in zip(our_drafts, their_drafts, strict=True):
        assert torch.equal(mine.tokens, its.tokens)
        assert torch.equal(mine.candidates, its.candidates)
        assert int(mine.candidates.max()) < VOCABULARY


def with_head(head: nn.Module) -> PreTrainedModel:
    model = toy_model(num_hidden_layers=3)
    model.lm_head = head
    return model


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(H, len(weight), bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer


HEADS: dict[str, Callable[[], nn.Module]] = {
    "nibbles, padded": lambda: HeadOfNibbles(PADDED, seed=1),
    "bytes": lambda: HeadOfBytes(VOCABULARY, seed=2),
    "bytes, padded": lambda: HeadOfBytes(PADDED, seed=3),
}


@pytest.mark.parametrize("kind", HEADS)
def test_drafts_through_a_packed_head_are_those_of_the_dequantised_one(kind: str) -> None:
    packed = HEADS[kind]()
    assert torch.equal(packed.dequantised(), packed.codes * packed.scale[:, None])
    assert_as_dequantised(with_head(packed), with_head(linear(packed.dequantised(), getattr(packed, "bias", None))))


def test_a_product_with_packed_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Target, "head", lambda self, hidden: hidden @ self.model.get_output_embeddings().weight.to(hidden.dtype).T
    )
    for kind in HEADS:
        with pytest.raises((AssertionError, RuntimeError)):
            test_drafts_through_a_packed_head_are_those_of_the_dequantised_one(kind)


def with_table(table: nn.Module) -> PreTrainedModel:
    model = toy_model(num_hidden_layers=3)
    model.set_input_embeddings(table)
    return model


@pytest.mark.parametrize("embed_scale", [None, 4.0])
def test_drafts_through_a_packed_embedding_are_those_of_the_dequantised_one(embed_scale: float | None) -> None:
    """The scale is the model's: the drafter has one of its own for the raw rows."""
    packed = TableOfBytes(VOCABULARY, 4, embed_scale)
    ids = torch.arange(VOCABULARY)
    assert torch.equal(Target(with_table(packed)).embed(ids), packed.dequantised())
    plain = nn.Embedding.from_pretrained(packed.dequantised())
    if embed_scale is not None:
        plain.register_forward_hook(lambda module, args, rows: rows * embed_scale)
    assert_as_dequantised(with_table(packed), with_table(plain), input_embedding_scale=1.5)


def rows_of_codes(self: Target, ids: Tensor) -> Tensor:
    return F.embedding(ids, self.model.get_input_embeddings().weight)


def rows_as_the_model_scales_them(self: Target, ids: Tensor) -> Tensor:
    rows: Tensor = self.model.get_input_embeddings()(ids)
    return rows


@pytest.mark.parametrize("fault", [rows_of_codes, rows_as_the_model_scales_them])
def test_rows_of_a_packed_embedding_that_are_not_the_raw_ones_are_caught(
    fault: Callable[[Target, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "embed", fault)
    with pytest.raises(AssertionError):
        test_drafts_through_a_packed_embedding_are_those_of_the_dequantised_one(4.0)


def test_scale_and_softcap_of_a_target_are_applied_once_by_the_drafters_config() -> None:
    """Gemma 2: rows times sqrt(H), logits capped. What is borrowed is raw; with both, a drafter sees what its target sees."""
    gemma = target_of("Gemma2, eager", num_hidden_layers=3)
    table = gemma.model.get_input_embeddings()
    ids = torch.arange(VOCABULARY)[None]
    assert torch.equal(gemma.embed(ids), table.weight[ids])
    drafter = Drafter(drafter_config(**FITS, input_embedding_scale=float(H**0.5), final_logit_softcapping=3.0)).requires_grad_(
        False
    )
    assert torch.equal(drafter.embed(ids, gemma.embed), table(ids))
    assert not torch.equal(table(ids), table.weight[ids])
    hidden = torch.randn(1, 5, H, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drafter.logits(hidden, gemma.head), gemma.logits(hidden))
    assert not torch.allclose(gemma.head(hidden), gemma.logits(hidden), atol=1e-3)


def capped_already(self: Target, hidden: Tensor) -> Tensor:
    logits: Tensor = self.model.get_output_embeddings()(hidden)
    return 3.0 * torch.tanh(logits / 3.0)


@pytest.mark.parametrize(("name", "fault"), [("embed", rows_as_the_model_scales_them), ("head", capped_already)])
def test_a_scale_or_a_softcap_applied_twice_is_caught(
    name: str, fault: Callable[[Target, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, name, fault)
    with pytest.raises(AssertionError):
        test_scale_and_softcap_of_a_target_are_applied_once_by_the_drafters_config()


def test_a_tied_head_is_the_embedding_also_from_a_checkpoint_that_holds_it_once(tmp_path: Path) -> None:
    model = toy_model(num_hidden_layers=3, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    LETTERS.save_pretrained(tmp_path)
    loaded = Target.from_pretrained(tmp_path, device="cpu").model
    untied = toy_model(num_hidden_layers=3)
    untied.load_state_dict(model.state_dict())
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert_as_dequantised(loaded, untied)


def test_a_head_that_only_seems_tied_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mutant is a loader that gives a tied model a head of its own."""
    from_pretrained = Target.from_pretrained

    def with_a_new_head(*asked: Path, **options: str) -> Target:
        target = from_pretrained(*asked, **options)
        randomise(target.model.lm_head, seed=9)
        target.model.lm_head.weight = nn.Parameter(target.model.lm_head.weight.clone())
        return target

    monkeypatch.setattr(Target, "from_pretrained", with_a_new_head)
    with pytest.raises(AssertionError):
        test_a_tied_head_is_the_embedding_also_from_a_checkpoint_that_holds_it_once(tmp_path)
