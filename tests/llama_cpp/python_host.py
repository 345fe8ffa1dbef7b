"""llama-cpp-python on the libraries of `ci/llama_cpp.sh`: `python python_host.py TARGET.gguf DRAFTER.gguf < asked.json`.

Asked: {"texts": [...], "prompts": [[id, ...], ...], "new_tokens": N}. Answers in JSON: the texts' ids, the prompts'
greedy continuations, decoded in this process by the target alone, and what llama.cpp says of the drafter's file.
"""

import ctypes
import json
import sys

import llama_cpp
from llama_cpp import Llama


def main(target_path: str, drafter_path: str) -> None:
    asked = json.load(sys.stdin)
    target = Llama(
        target_path,
        n_ctx=512,
        n_batch=512,
        n_threads=1,
        n_threads_batch=1,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
    )
    answer = {
        "tokenized": [target.tokenize(text.encode(), add_bos=False, special=True) for text in asked["texts"]],
        "written": [continued(target, prompt, asked["new_tokens"]) for prompt in asked["prompts"]],
        "drafter": described(drafter_path),
    }
    print(json.dumps(answer))


def continued(target: Llama, prompt: list[int], new_tokens: int) -> list[int]:
    """The most probable ids, the one that ends the text included: there may be several of those."""
    written: list[int] = []
    vocabulary = llama_cpp.llama_model_get_vocab(target.model)
    for token in target.generate(prompt, temp=0.0):
        written.append(token)
        if len(written) == new_tokens or llama_cpp.llama_vocab_is_eog(vocabulary, token):
            break
    return written


def described(path: str) -> dict[str, object]:
    """What is read of a file that only drafts and cannot write."""
    parameters = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise SystemExit(f"{path} could not be loaded")
    found = {}
    for i in range(llama_cpp.llama_model_meta_count(model)):
        key, value = ctypes.create_string_buffer(256), ctypes.create_string_buffer(4096)
        llama_cpp.llama_model_meta_key_by_index(model, i, key, len(key))
        llama_cpp.llama_model_meta_val_str_by_index(model, i, value, len(value))
        found[key.value.decode()] = value.value.decode(errors="replace")
    return {
        "keys": found,
        "parameters": llama_cpp.llama_model_n_params(model),
        "embedding": llama_cpp.llama_model_n_embd(model),
        "vocabulary": llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
