"""`dflash2 verify` on llama-server: started by it, and on two servers that run already."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash2_core.assets import tiny_pair
from tests.llama_cpp.conftest import Serve

ENGINE = ("--engine", "llama-cpp")
FEW = ("--per-kind", "1", "--parallel", "4", "--json")


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash2_core.cli", "verify", *map(str, arguments)], capture_output=True, text=True, timeout=500
    )


def told(done: "subprocess.CompletedProcess[str]", code: int) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def url(serve: Serve, outtype: str | None) -> str:
    return serve(outtype, 4).base_url


def test_the_embedded_pair_is_lossless_without_a_word_about_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = told(verify(*ENGINE, *FEW, "--tokens", "300", "--", "-t", "1"), 0)
    assert report["lossless"] is True
    assert report["differences"] == []
    assert report["drafting"]["num_accepted"] > 0
    assert report["tested"]["engine arguments"] == "-t 1"
    assert report["tested"]["computes in"] == "float32"
    assert len(list(tmp_path.glob("dflash2/*.gguf"))) == 2


def test_two_running_servers_are_held_against_each_other_and_the_core(serve: Serve) -> None:
    asked = ("--plain", url(serve, None), "--speculative", url(serve, "f32"), *FEW, "--tokens", "300")
    report = told(verify(*ENGINE, *asked), 0)
    assert report["lossless"] is True
    assert report["laws"]["all"]["num_tokens"] > 100
    assert report["tested"]["plain server"] == url(serve, None)


def test_with_the_tokenizer_alone_laws_are_compared_by_samples(serve: Serve, files: Path) -> None:
    pair = (files / "target.gguf", files / "f32.gguf", "--tokenizer", tiny_pair().target)
    asked = ("--plain", url(serve, None), "--speculative", url(serve, "f32"), *FEW, "--tokens", "1500")
    report = told(verify(*pair, *ENGINE, *asked), 0)
    assert all(law["p_value"] >= law["alpha"] for law in report["laws"].values())
    assert sum(law["num_texts"][0] for law in report["laws"].values()) > 20
    assert any("two samples" in note for note in report["notes"])


def test_a_server_without_its_drafter_is_no_pass(serve: Serve) -> None:
    plain = url(serve, None)
    report = told(verify(*ENGINE, "--plain", plain, "--speculative", plain, *FEW, "--tokens", "0"), 1)
    assert report["lossless"] is False
    assert any("draft" in finding for finding in report["findings"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "gpt4all", "--plain", "http://x", "--speculative", "http://y"), "there is no engine 'gpt4all'"),
        ((*ENGINE, "--plain", "http://127.0.0.1:9"), "--plain and --speculative belong together"),
        ((*ENGINE, "--plain", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9"), "no llama-server answers at"),
        ((*ENGINE, "--tokenizer", "nowhere"), "nowhere/tokenizer.json is no tokenizer that can be read"),
        (("--tokenizer", str(tiny_pair().target)), "the engine transformers runs the target itself"),
        ((*ENGINE, "a.gguf", "b.gguf"), "a.gguf is no Hugging Face folder"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = verify(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
