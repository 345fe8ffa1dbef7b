"""Runs llama.cpp's converter in a process of its own: FOLDER PRE ARGUMENTS...

It knows pre-tokenizers by a hash over what the whole vocabulary makes of a sample, so it knows published vocabularies only.
The name PRE is given to it instead. And it imports SentencePiece before it looks whether there is a model for it; it is told
at once that there is none. Everything else is the converter as it stands.
"""

import sys

folder, pre, *arguments = sys.argv[1:]
sys.path.insert(0, folder)
sys.argv = ["convert_hf_to_gguf.py", *arguments]

import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402


def no_sentencepiece(self: object) -> None:
    raise FileNotFoundError("tokenizer.model")


TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
TextModel._set_vocab_sentencepiece = no_sentencepiece
convert_hf_to_gguf.main()
