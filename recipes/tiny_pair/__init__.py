"""How the embedded pair is made from nothing: corpus, tokenizer, target, drafter, and the figures of its card."""
