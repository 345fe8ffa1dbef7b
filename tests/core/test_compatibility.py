"""What a target's own files say of it."""

from pathlib import Path
from typing import Any

import pytest

from dflash2_core.compatibility import TargetFacts, special_ids
from dflash2_core.errors import CheckpointError

SIZES = {"hidden_size": 16, "vocab_size": 37, "num_hidden_layers": 6}


@pytest.mark.parametrize("document", [SIZES, {"text_config": SIZES, "hidden_size": 99}], ids=["a text model", "inside another"])
def test_sizes_are_those_of_the_text_model(document: dict[str, Any]) -> None:
    facts = TargetFacts.of_config(document, folder=Path("t"))
    assert (facts.hidden_size, facts.vocab_size, facts.num_layers) == (16, 37, 6)
    assert facts.special_ids == {}


def test_every_size_that_is_missing_is_named() -> None:
    with pytest.raises(CheckpointError, match="no vocab_size, num_hidden_layers"):
        TargetFacts.of_config({"hidden_size": 16, "vocab_size": "37"}, folder=Path("t"))


def test_ids_that_a_mask_token_must_not_be_are_those_that_are_named() -> None:
    assert special_ids(2, None) == {"end-of-sequence (2)": 2}
    assert special_ids([0, 2], 1) == {"end-of-sequence (0)": 0, "end-of-sequence (2)": 2, "padding": 1}
    assert special_ids(None, None) == {}
