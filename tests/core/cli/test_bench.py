"""`dflash2 bench` as its user meets it."""

import json
import shutil
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from tests.core.cli.test_generate import Done, dflash2

SMALL = ("--engine", "transformers", "--rounds", "2", "--batches", "1,2", "--max-new-tokens", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def done(folder: Path) -> Done:
    prompts = folder / "prompts.txt"
    prompts.write_text("import os\nThe sum of 3 and 4\ndef main():\n")
    files = ("--html", str(folder / "b.html"), "--png", str(folder / "b.png"))
    return dflash2("bench", *SMALL, "--prompts", prompts, *files, "--json")


def test_it_tells_every_sample_and_what_was_accepted(done: Done) -> None:
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [engine] = told["engines"]
    assert (engine["engine"], told["num_prompts"], told["left_out"]) == ("transformers", 3, {})
    assert [batch["requests_at_once"] for batch in engine["batches"]] == [1, 2]
    for batch in engine["batches"]:
        assert len(batch["samples"]["plain"]) == len(batch["samples"]["drafted"]) == 2
        assert batch["texts"] == {"compared": 6, "identical": 6}
        assert batch["acceptance"]["mean_acceptance_length"] > 1
    assert engine["facts"]["drafter sha256"]
    assert engine["facts"]["computes in"] == "float32"


def test_it_draws_a_page_and_a_picture(done: Done, folder: Path) -> None:
    assert done.returncode == 0
    assert (folder / "b.html").read_text().count("<svg") == 3
    assert (folder / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_drafter_whose_drafts_are_never_kept_is_exit_code_1(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    spoilt = tmp_path / "drafter"
    shutil.copytree(tiny_pair().drafter, spoilt)
    weights = load_file(spoilt / "model.safetensors")
    for name in ("norm.weight", "candidate_selector.successor_codebook"):  # every logit and every score is 0: it drafts id 0
        weights[name] = torch.zeros_like(weights[name])
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("import os\ndef main():\n")  # texts that go on, since id 0 ends one
    pair = ("--target", tiny_pair().target, "--drafter", spoilt)
    done = dflash2("bench", *SMALL, "--rounds", "1", "--prompts", prompts, *pair)
    assert done.returncode == 1, done.stderr
    assert "drafts were made and none was accepted" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--engine", "nobody"), "there is no engine 'nobody'"),
        (("--target", "somewhere"), "a target and its drafter belong together"),
        (("--batches", "1,0"), "--batches is '1,0': expected numbers of requests at once"),
        (("--batches", "many"), "--batches is 'many'"),
        (("--engine", "vllm", "--engine", "transformers", "--", "--dtype", "float32"), "engine arguments belong to one engine"),
        (("--prompts", "no-such-file", "--engine", "transformers"), "the prompts in no-such-file could not be read"),
        (("--html", "nowhere/b.html"), "nowhere/b.html cannot be written: there is no folder nowhere"),
        (("--png", "/"), "/ is a folder: expected the name of a file to write"),
        (("--dtype", "fp8"), "the dtype is fp8: expected one of float32, float16, bfloat16"),
        (("--memory", "2"), "the share of memory is 2.0: expected more than 0"),
        (("--max-new-tokens", "2"), "Invalid value for '--max-new-tokens'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_run_ends_with_a_sentence_and_code_2(options: tuple[str, ...], sentence: str) -> None:
    done = dflash2("bench", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
