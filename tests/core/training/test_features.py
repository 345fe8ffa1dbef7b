import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from dflash2_core.errors import CompatibilityError
from dflash2_core.training.documents import Document
from dflash2_core.training.features import FeatureSource
from dflash2_core.transformers_engine import Target
from tests.core.toys import randomise, toy_model

SMALL = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
OTHERS = {
    "softcap": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=3.0, query_pre_attn_scalar=8)),
    "scale": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)),
    "divisor": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=4.0)),
    "neither": toy_model,
}


def documents_of(target: Target) -> list[Document]:
    generator = torch.Generator().manual_seed(0)
    lengths = (9, 4, 13)
    return [Document(torch.randint(target.vocab_size, (n,), generator=generator).tolist(), 2) for n in lengths]


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("keep", [False, True])
def test_they_are_the_targets_taps_and_lead_to_its_own_logits(kind: str, keep: bool) -> None:
    model = OTHERS[kind]().eval()
    randomise(model, seed=0, scale=0.6)
    target = Target(model)
    documents = documents_of(target)
    source = FeatureSource(target, (1, 0), keep=keep)
    features = source.of(documents)
    assert features.taps.shape == (3, 13, 2 * 16)
    for row, document in enumerate(documents):
        length = len(document.tokens)
        whole = model(torch.tensor([document.tokens]), output_hidden_states=True)
        logits = target.logits(features.hidden[row, :length])
        torch.testing.assert_close(logits, whole.logits[0], atol=2e-5, rtol=1e-5)
        # hidden_states[2] of a model of two layers has passed the final norm, so the first layer is compared
        torch.testing.assert_close(features.taps[row, :length, 16:], whole.hidden_states[1][0], atol=2e-5, rtol=1e-5)


def test_a_kept_document_is_read_once_and_in_whatever_company(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(toy_model())
    first, second, third = documents_of(target)
    source = FeatureSource(target, (1, 3), keep=True)
    alone = source.of([second])
    passes = []
    encode = target.encode
    monkeypatch.setattr(target, "encode", lambda tokens, taps: passes.append(tokens.shape) or encode(tokens, taps))
    together = source.of([first, second, third])
    assert passes == [(1, 9), (1, 13)]
    assert torch.equal(together.taps[1, :4], alone.taps[0])
    assert torch.equal(together.hidden[1, :4], alone.hidden[0])
    assert torch.equal(source.of([first, second, third]).hidden, together.hidden)
    assert len(passes) == 2


def test_logits_made_in_an_unknown_way_are_refused_rather_than_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_model()
    target = Target(model)
    forward = model.forward

    def squared(*args: object, **kwargs: object) -> object:
        output = forward(*args, **kwargs)
        output.logits = output.logits.square()
        return output

    monkeypatch.setattr(model, "forward", squared)
    with pytest.raises(CompatibilityError, match="does not make its logits"):
        target.logits(torch.zeros(1, target.hidden_size))
