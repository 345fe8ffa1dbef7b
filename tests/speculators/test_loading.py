"""What `dflash2 convert --to speculators` writes, in speculators 0.9.0 itself: its own loader, layers and selector.

Needs the environment of ci/speculators.sh; without it these tests fail. One process of that package answers all of them.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash2_core import Drafter, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.conversion import convert, open_source
from tests.core.toys import VOCABULARY, random_drafter
from tests.engines.pair import drafts_at, target, thirty_prompts, written_plainly
from tests.speculators.blocks import blocks

PYTHON = Path(__file__).parents[2] / ".venvs/speculators/bin/python"
LENGTH, ANCHORS = 40, (1, 2, 7, 16, 30)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TOYS: dict[str, dict[str, Any]] = {
    "windows": {"layer_windows": (64, 64)},
    "no windows": {"layer_windows": (None, None)},
    "causal": {"layer_windows": (64, 64), "layer_causal": (True, True)},
    "mixed": {"layer_windows": (64, None), "layer_causal": (True, False)},
    "DFlash 1": {"version": 1, "layer_windows": (64, 64)},
    "three taps of a kernel": {"conv_kernel_size": 3},
    "yarn": {"rope_parameters": YARN},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "llama3": {"rope_parameters": LLAMA3},
}
EMBEDDED, FLAG_FLIPPED = "the embedded drafter", "windows, its causal flag flipped"


@dataclass(frozen=True)
class Answer:
    told: dict[str, Any]
    weights: dict[str, Tensor]
    logits: Tensor
    drafts: Tensor


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a case: what was converted (`source`), into what (`drafter`), and the inputs of a text."""
    root = tmp_path_factory.mktemp("speculators")
    for seed, (name, changes) in enumerate(TOYS.items()):
        save_drafter(random_drafter(seed, **changes), root / name / "source")
        convert(open_source(root / name / "source"), root / name / "drafter", layout="speculators")
        save_file(toy_inputs(seed), root / name / "inputs")
    (root / EMBEDDED).mkdir()
    verifier = {"name_or_path": str(tiny_pair().target), "architectures": ["Qwen3ForCausalLM"]}
    convert(open_source(tiny_pair().drafter), root / EMBEDDED / "drafter", layout="speculators", verifier=verifier)
    save_file(pair_inputs(), root / EMBEDDED / "inputs")
    flip_causal_flag(root / "windows", root / FLAG_FLIPPED)
    return root


@pytest.fixture(scope="module")
def answers(asked: Path) -> Mapping[str, Answer]:
    assert PYTHON.exists(), "speculators is not there: bash ci/speculators.sh"
    cases = sorted(asked.iterdir())
    jobs = [{"folder": f"{case}/drafter", "inputs": f"{case}/inputs", "outputs": f"{case}/outputs"} for case in cases]
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("peer.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line.removeprefix("told ")) for line in done.stdout.splitlines() if line.startswith("told ")]
    return {case.name: answer(case, said) for case, said in zip(cases, told, strict=True)}


def answer(case: Path, told: dict[str, Any]) -> Answer:
    weights = load_file(case / "outputs")
    return Answer(told=told, logits=weights.pop("logits"), drafts=weights.pop("drafts"), weights=weights)


def toy_inputs(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "taps": torch.randn(LENGTH, 3 * 16, generator=generator),
        "ids": torch.randint(VOCABULARY - 3, (LENGTH,), generator=generator),
        "anchors": torch.tensor(ANCHORS),
        "embedding": torch.randn(VOCABULARY, 16, generator=generator),
        "head": torch.randn(VOCABULARY, 16, generator=generator) / 4,
    }


def pair_text() -> list[int]:
    return [*thirty_prompts()[0], *written_plainly()[0].token_ids]


def pair_anchors() -> list[int]:
    """Within the window of 96: nearer to its edge speculators' own training mask differs by up to a block from q - k < W."""
    return list(range(1, min(len(pair_text()) - 8, 96 - 8), 2))


@torch.inference_mode()
def pair_inputs() -> dict[str, Tensor]:
    text, taps = pair_text(), load_drafter(tiny_pair().drafter).config.target_layer_ids
    _, features = target().forward(torch.tensor([text]), target().new_cache(), rows=1, taps=taps)
    assert features is not None
    return {"taps": features[0].contiguous(), "ids": torch.tensor(text), "anchors": torch.tensor(pair_anchors())}


def flip_causal_flag(case: Path, copy: Path) -> None:
    (copy / "drafter").mkdir(parents=True)
    for name in ("drafter/model.safetensors", "inputs"):
        (copy / name).symlink_to(case / name)
    document = json.loads((case / "drafter/config.json").read_text())
    document["sliding_window_non_causal"] = not document["sliding_window_non_causal"]
    (copy / "drafter/config.json").write_text(json.dumps(document))


def of_the_core(asked: Path, name: str) -> tuple[Tensor, Tensor]:
    given = load_file(asked / name / "inputs")
    drafter: Drafter = load_drafter(asked / name / "source")
    return blocks(drafter, given["taps"], given["ids"], given["anchors"].tolist(), given["embedding"], given["head"])


@pytest.mark.parametrize("name", TOYS)
def test_speculators_computes_and_drafts_what_the_core_does(name: str, asked: Path, answers: Mapping[str, Answer]) -> None:
    logits, drafts = of_the_core(asked, name)
    torch.testing.assert_close(answers[name].logits, logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(answers[name].drafts, drafts)


def test_a_flag_that_is_lost_on_the_way_would_be_seen(asked: Path, answers: Mapping[str, Answer]) -> None:
    """The mutant of the test above."""
    logits, drafts = of_the_core(asked, "windows")
    assert (answers[FLAG_FLIPPED].logits - logits).abs().max() > 0.1
    assert not torch.equal(answers[FLAG_FLIPPED].drafts, drafts)


def test_the_embedded_drafter_drafts_the_same_blocks_there(answers: Mapping[str, Answer]) -> None:
    """In float32, with the embedding and head that speculators itself took from the target it was told of."""
    expected = drafts_at(pair_text(), pair_anchors())
    assert len(expected) > 20
    assert answers[EMBEDDED].drafts.tolist() == expected


def test_every_weight_arrives_there_as_it_was_stored(answers: Mapping[str, Answer]) -> None:
    source = open_source(tiny_pair().drafter)
    arrived = answers[EMBEDDED].weights
    assert len(source.tensors) == 36
    for name, tensor in source.tensors.items():
        assert arrived[name].dtype == tensor.dtype
        assert torch.equal(arrived[name], tensor), name


def test_speculators_reads_taps_mask_and_block_as_the_drafter_has_them(answers: Mapping[str, Answer]) -> None:
    config = load_drafter(tiny_pair().drafter).config
    assert answers[EMBEDDED].told == {
        "class": "DFlash2DraftModel",
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "block_size": 8,
        "sliding_window_non_causal": True,
    }
    assert answers["DFlash 1"].told["class"] == "DFlashDraftModel"
