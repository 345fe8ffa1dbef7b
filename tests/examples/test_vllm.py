"""The example that serves with vLLM. Without what `ci/vllm.sh` builds it fails, with the sentence that says so."""

from tests.examples.running import acceptance_length, run


def test_serve_answers_and_drafts() -> None:
    said = run("serve_vllm.py")
    command, text = said.split("\n", 1)
    assert command.startswith("runs ")
    assert "    " in text, "no Python was written"
    assert acceptance_length(said) > 2
