"""No two draws of a cycle share their noise: the worker's own step, 200,000 times, against the law it has to keep.

A draft that was rejected and the token that takes its place are both drawn; from one and the same number the texts would lean,
too little for a test of some thousands of tokens. `draws.py` gives the worker a law on which that shows, and shares numbers on
purpose: each such fault has to be found by the test that the sound worker passes.
"""

import json
import os
import subprocess
from typing import Any

import pytest
import torch

from tests.sglang.draws import BLOCKS, DRAFTS, SHARED, P
from tests.sglang.servers import ENVIRONMENT, PYTHON, ROOT
from tests.sglang.test_plugin import CPU

ALPHA = 1e-6
VERSIONS = ("DFlash 1", "DFlash 2")


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, "-m", "tests.sglang.draws"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | CPU,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def p_value(counts: list[list[int]]) -> float:
    """Pearson's chi-square of all places together: given the tokens before it, each token has the law P."""
    n = torch.tensor(counts, dtype=torch.float64)
    n = n[n.sum(1) > 1000]  # what comes more rarely is too little for a chi-square
    expected = n.sum(1, keepdim=True) * torch.tensor(P, dtype=torch.float64)
    statistic, freedom = ((n - expected) ** 2 / expected).sum(), n.numel() - len(n)
    return float(torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_committed_has_the_targets_law_at_every_place_of_a_block(version: str, drawn: dict[str, Any]) -> None:
    counts = drawn["counts"]["sound"][version]
    assert sum(sum(row) > 1000 for row in counts) > DRAFTS * (len(P) - 1)
    assert sum(counts[0]) == BLOCKS
    assert sum(map(sum, counts)) > 1.8 * BLOCKS, "hardly a draft was accepted"
    assert sum(map(sum, counts[1 + len(P) * (DRAFTS - 1) :])) > 0.02 * BLOCKS, "there was hardly a bonus token"
    assert p_value(counts) > ALPHA


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", [name for name in SHARED if name != "sound"])
def test_draws_that_share_their_noise_are_found(fault: str, version: str, drawn: dict[str, Any]) -> None:
    assert p_value(drawn["counts"][fault][version]) < ALPHA


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_a_seed_gets_the_same_alone_and_in_a_batch(version: str, drawn: dict[str, Any]) -> None:
    assert drawn["seeds"][version] == {"alone": True, "in another order": True, "other seeds": False}
