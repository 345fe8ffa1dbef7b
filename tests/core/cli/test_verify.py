"""`dflash2 verify`: what it does not run, in a sentence."""

import pytest

from tests.core.cli.test_generate import dflash2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--computes-in", "fp8"), "--computes-in is 'fp8': expected one of float32, float16, bfloat16"),
        (("--computes-in", "bfloat16"), "the engine transformers is verified in float32, where nothing may differ"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_verified_ends_with_a_sentence_and_code_2(options: tuple[str, ...], sentence: str) -> None:
    done = dflash2("verify", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
