"""The target that the other tests run on is the embedded one: the same ids for the same text, the same logits."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from dflash2_core.assets import held_out_prompts, tiny_pair
from tests.llama_cpp.conftest import Serve


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_pair().target, dtype=torch.float32).eval()


def test_llama_cpp_reads_every_held_out_text_as_the_same_ids(serve: Serve) -> None:
    tokenizer, server = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json")), serve(None)
    for prompt in held_out_prompts():
        answer = server.ask("/tokenize", {"content": prompt["text"], "parse_special": True, "add_special": True})
        assert answer["tokens"] == tokenizer.encode(prompt["text"]).ids, prompt["text"]


def test_the_logits_of_every_id_are_those_of_hugging_face(
    serve: Serve, model: torch.nn.Module, prompts: list[list[int]]
) -> None:
    size = model.config.vocab_size
    for prompt in prompts[::6]:
        asked = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": size}
        [told] = serve(None).ask("/completion", asked)["completion_probabilities"]
        found = torch.full((size,), torch.nan)
        for entry in told["top_logprobs"]:
            found[entry["id"]] = entry["logprob"]
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
