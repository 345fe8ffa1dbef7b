"""A byte-level BPE of 1,024 entries with GPT-2's pre-tokenizer: AutoTokenizer loads it, llama.cpp's converter knows it."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.tiny_pair.corpus import DOMAINS, IM_END, IM_START, documents

VOCAB_SIZE = 1024
EOS, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
SPECIAL_TOKENS = [EOS, PAD, MASK, IM_START, IM_END]
MAX_LENGTH = 2048
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHARACTERS_PER_DOMAIN = 3_000_000


def train_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Trains on equal shares of the three domains and saves to `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        mask_token=MASK,
        additional_special_tokens=[IM_START, IM_END],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    save_tokenizer(fast, folder)
    return fast


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """tokenizer_config.json in the keys that transformers 4 and 5 both read, since every engine brings its own version."""
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PAD,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START, IM_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _sample() -> Iterator[str]:
    """Digits are left out, so that no merge joins two of them: every number is spelled digit by digit."""
    for domain in DOMAINS:
        texts = documents(domain, "train")
        random.Random(0).shuffle(texts)
        room = CHARACTERS_PER_DOMAIN
        for text in texts:
            text = text[: min(room, 60_000)]
            room -= len(text)
            for special in SPECIAL_TOKENS:
                text = text.replace(special, " ")
            yield re.sub(r"\d+", " ", text)
            if room <= 0:
                break
