"""The embedded pair is what its card says: small, whole, of the published shape, and trained in every part."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash2_core import Drafter, SamplingParams, TransformersEngine, load_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.transformers_engine import Target

PAIR = tiny_pair()
SMALL_ENOUGH = 14_000_000  # bytes, both together


def dtypes(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118


def test_it_is_small_and_in_bfloat16() -> None:
    files = [path for folder in (PAIR.target, PAIR.drafter) for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= SMALL_ENOUGH
    assert dtypes(PAIR.target) == dtypes(PAIR.drafter) == {"torch.bfloat16"}


def test_the_target_is_one_that_every_engine_can_take() -> None:
    model = AutoModelForCausalLM.from_pretrained(PAIR.target)
    assert model.config.model_type == "qwen3"
    assert model.config.head_dim == 64
    assert model.config.hidden_size >= 272
    assert model.config.hidden_size % 16 == 0
    tokenizer = AutoTokenizer.from_pretrained(PAIR.target)
    assert 1000 <= len(tokenizer) <= 2000
    assert model.config.vocab_size == len(tokenizer)
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}) == 3
    backend = json.loads((PAIR.target / "tokenizer.json").read_text())
    assert backend["model"]["type"] == "BPE"
    assert "ByteLevel" in json.dumps(backend["pre_tokenizer"])
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1"}], tokenize=False, add_generation_prompt=True)
    assert chat.count("1 + 1") == 1


def test_the_drafter_has_the_published_shape() -> None:
    config = json.loads((PAIR.drafter / "config.json").read_text())
    nested = config["dflash_config"]
    assert nested["block_size"] == 8
    assert nested["selector_top_k"] == 16
    assert config["is_causal"] is False
    assert set(config["layer_types"]) == {"sliding_attention"}
    longest = max(len(AutoTokenizer.from_pretrained(PAIR.target)(entry["text"])["input_ids"]) for entry in held_out_prompts())
    assert 64 <= config["sliding_window"] <= 128 < longest


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    return load_drafter(PAIR.drafter, dtype=torch.float32)


def test_every_part_is_trained(drafter: Drafter) -> None:
    weights = drafter.state_dict()
    assert all(tensor.isfinite().all() for tensor in weights.values())
    k_norms = [tensor for name, tensor in weights.items() if name.endswith("k_norm.weight")]
    assert len(k_norms) == 2
    assert not torch.allclose(*k_norms, atol=1e-2)
    for name, tensor in weights.items():
        if name.endswith("base_kernel"):  # the identity: 1 at the row itself, 0 elsewhere
            assert (tensor[:, 0] - 1).abs().max() > 0.05, name
            assert tensor[:, 1:].abs().max() > 0.05, name
        else:
            assert tensor.abs().max() > 1e-2, name
        assert tensor.std() > 1e-3, f"{name} is constant"


def without_convolutions(weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if name.endswith("kernel_projection.weight"):
            tensor.zero_()
        elif name.endswith("base_kernel"):
            tensor.zero_()
            tensor[:, 0] = 1


def without_selector(weights: dict[str, Tensor]) -> None:
    weights["candidate_selector.successor_codebook"].zero_()


@pytest.mark.parametrize("without", [without_convolutions, without_selector])
def test_convolutions_and_selector_are_used_and_pay(without: Callable[[dict[str, Tensor]], None], drafter: Drafter) -> None:
    """A drafter without one of them still loads; it must draft otherwise, and worse."""
    lesser = load_drafter(PAIR.drafter, dtype=torch.float32)
    without(lesser.state_dict())
    target = Target.from_pretrained(PAIR.target, dtype="float32", device="cpu")
    prompts = [entry["text"] for entry in held_out_prompts()[5::30]]
    params = SamplingParams(max_new_tokens=48)
    whole, part = (TransformersEngine(target, each, max_batch_size=8).generate(prompts, params) for each in (drafter, lesser))
    assert [c.token_ids for c in whole] == [c.token_ids for c in part]
    accepted, fewer = (sum(c.stats.num_accepted for c in completions) for completions in (whole, part))
    assert fewer < 0.9 * accepted


def test_the_card_says_how_it_was_made_and_what_it_may_be_used_for() -> None:
    card = (PAIR.target.parent / "README.md").read_text()
    for words in ("license: apache-2.0", "nats per token", "8-grams", "T = 0.7", "DFlash 1", "reasoning-gym", "minutes"):
        assert words in card
