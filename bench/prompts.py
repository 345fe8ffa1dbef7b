"""What the embedded pair is timed on: held-out prompts of each domain, in ids."""

from tokenizers import Tokenizer

from dflash2_core.assets import held_out_prompts, tiny_pair


def encoded_prompts(count: int) -> list[list[int]]:
    """`count` of them, spread over the domains."""
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    encoded = [ids for prompt in held_out_prompts() if len(ids := tokenizer.encode(prompt["text"]).ids) > 1]
    return encoded[:: len(encoded) // count][:count]
