"""A drafter that is broken, foreign or dangerous is a sentence in every engine, before anything is started."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash2_core.assets import tiny_pair
from dflash2_core.errors import Dflash2Error
from tests.cross_engine.running import Running
from tests.engines.spoiling import remove, set_key, spoilt

INNER = "dflash_config"


def with_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"][3, 5] = float("nan")


def as_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)


def with_one_more(tensors: dict[str, torch.Tensor]) -> None:
    tensors["markov.weight"] = torch.zeros(4, 4, dtype=torch.bfloat16)


def of_width(width: int) -> Callable[[dict[str, Any]], None]:
    return set_key("hidden_size", to=width)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "taps: none": ({"config": set_key(INNER, "target_layer_ids", to=None)}, "target_layer_ids is missing"),
    "taps: the last layer": ({"config": set_key(INNER, "target_layer_ids", to=[0, 1, 3])}, "layer"),
    "taps: past the target": ({"config": set_key(INNER, "target_layer_ids", to=[0, 1, 6])}, "6"),
    "taps: -1": ({"config": set_key(INNER, "target_layer_ids", to=[0, 1, -1])}, "-1"),
    "taps: one twice": ({"config": set_key(INNER, "target_layer_ids", to=[0, 2, 2])}, "target_layer_ids"),
    "mask token: none": ({"config": set_key(INNER, "mask_token_id", to=None)}, "mask_token_id is missing"),
    "mask token: ends texts": ({"config": set_key(INNER, "mask_token_id", to=0)}, "mask_token_id and eos_token_id are both 0"),
    "mask token: past the vocabulary": ({"config": set_key(INNER, "mask_token_id", to=1024)}, "1024"),
    "DFlash 2: a key missing": ({"config": set_key(INNER, "selector_rank", to=None)}, "selector_rank missing"),
    "DFlash 2: a tensor missing": (
        {"tensors": remove("candidate_selector.successor_codebook")},
        "candidate_selector.successor_codebook",
    ),
    "DFlash 2: a tensor more": ({"tensors": with_one_more}, "markov.weight"),
    "DFlash 2: an unknown key": ({"config": set_key(INNER, "tree_width", to=4)}, "tree_width"),
    "block size: none": ({"config": set_key(INNER, "block_size", to=None)}, "block_size is missing"),
    "block size: two of them": ({"config": set_key("block_size", to=9)}, "block_size"),
    "block size: absurd": ({"config": set_key(INNER, "block_size", to=2**31)}, "block_size"),
    "layers: absurd": ({"config": set_key("num_hidden_layers", to=10**9)}, "num_hidden_layers"),
    "vocabulary of another target": ({"config": set_key("vocab_size", to=1000)}, "1000"),
    "width of another target": ({"config": of_width(320)}, "320"),
    "depth of another target": ({"config": set_key("num_target_layers", to=6)}, "target of 6 layers, this one has 4"),
    "weights that are no numbers": ({"tensors": with_nan}, "fc.weight"),
    "weights that are packed": ({"tensors": as_integers}, "fc.weight"),
    "code of its own": ({"config": set_key("auto_map", to={"AutoModel": "evil.py"})}, "auto_map"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_drafter_is_refused_by_name(fault: str, engine: str, running: Running, tmp_path: Path) -> None:
    changes, sentence = BROKEN[fault]
    drafter = spoilt(tmp_path / "drafter", **changes)
    with pytest.raises(Dflash2Error) as refused:
        running.command(engine, tiny_pair().target, drafter)
    assert sentence in str(refused.value)


def test_a_pickle_is_not_opened(engine: str, running: Running, tmp_path: Path) -> None:
    drafter = spoilt(tmp_path / "drafter")
    (drafter / "model.safetensors").unlink()
    (drafter / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(Dflash2Error, match="pytorch_model.bin"):
        running.command(engine, tiny_pair().target, drafter)


def test_a_target_in_the_drafters_place_is_refused(engine: str, running: Running) -> None:
    with pytest.raises(Dflash2Error, match="another model|expected"):
        running.command(engine, tiny_pair().target, tiny_pair().target)


def test_the_sound_one_is_not(engine: str, running: Running) -> None:
    assert running.command(engine, tiny_pair().target, tiny_pair().drafter).argv


OWN_WORDS = {
    "vllm": ('"num_speculative_tokens": {drafts}',),
    "sglang": ("--speculative-num-draft-tokens {rows}",),
    "llama-cpp": ("--spec-draft-n-max {drafts}",),
}


@pytest.mark.parametrize("asked", [None, 1, 5, 7])
def test_a_number_of_drafts_is_said_in_the_engines_own_words(asked: int | None, engine: str, running: Running) -> None:
    drafts = 7 if asked is None else asked
    command = " ".join(running.command(engine, tiny_pair().target, tiny_pair().drafter, num_drafts=asked).argv)
    for words in OWN_WORDS[engine]:
        assert words.format(drafts=drafts, rows=drafts + 1) in command


def test_more_drafts_than_a_block_has_are_refused_with_both_numbers(engine: str, running: Running) -> None:
    with pytest.raises(Dflash2Error, match="8 drafts were asked for, and a drafter of block size 8 makes 7"):
        running.command(engine, tiny_pair().target, tiny_pair().drafter, num_drafts=8)
