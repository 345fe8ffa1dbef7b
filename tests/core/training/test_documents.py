import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dflash2_core import SamplingParams
from dflash2_core.errors import Dflash2Error
from dflash2_core.training.documents import Document, load_documents, save_documents
from dflash2_core.training.prompts import read_prompts
from dflash2_core.training.regenerate import regenerate
from dflash2_core.transformers_engine import Target, TransformersEngine


def test_a_greedy_response_is_what_the_engine_writes(target: Target, documents: list[Document]) -> None:
    for document in documents:
        prompt = document.tokens[: document.prompt_length]
        (completion,) = TransformersEngine(target).generate(prompt, SamplingParams(max_new_tokens=24))
        assert document.tokens[document.prompt_length :] == completion.token_ids


def test_responses_are_a_function_of_the_seed(target: Target) -> None:
    def write(seed: int) -> list[Document]:
        return list(regenerate(target, [[1, 2], [3, 4, 5]] * 3, temperatures=[1.0], max_new_tokens=9, batch_size=2, seed=seed))

    assert write(1) == write(1)
    assert write(1) != write(2)


def test_documents_come_back_as_they_were_saved(documents: list[Document], tmp_path: Path) -> None:
    save_documents(documents, tmp_path / "documents.safetensors", {"seed": "0"})
    assert load_documents(tmp_path / "documents.safetensors") == (documents, {"seed": "0"})


def test_another_file_is_not_taken_for_documents(tmp_path: Path) -> None:
    save_file({"tokens": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(Dflash2Error, match="not a file of training documents"):
        load_documents(tmp_path / "weights.safetensors")


def test_prompts_as_ids_need_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"token_ids": [1, 2]}\n\n{"token_ids": []}\n{"token_ids": [3]}\n')
    assert read_prompts(tmp_path / "p.jsonl", None) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("p.jsonl", '{"token_ids": [1]}\n{"prompt": "x"}', "entry 2"),
        ("p.json", "[", "could not be read"),
        ("p.txt", "hello", "no tokenizer"),
        ("p.jsonl", "", "holds no prompts"),
    ],
)
def test_a_prompt_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(Dflash2Error, match=sentence):
        read_prompts(tmp_path / name, None)


class Words:
    """A tokenizer of one id a word, with a chat template."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: bool) -> str:
        return f"user {messages[0]['content']} assistant"


def test_text_and_chat_prompts_are_tokenized(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one three\n\nfour")
    (tmp_path / "p.json").write_text(json.dumps([{"text": "a bb"}, {"messages": [{"role": "user", "content": "hi"}]}]))
    assert read_prompts(tmp_path / "p.txt", Words()) == [[3, 5], [4]]  # type: ignore[arg-type]
    assert read_prompts(tmp_path / "p.json", Words()) == [[1, 2], [4, 2, 9]]  # type: ignore[arg-type]
