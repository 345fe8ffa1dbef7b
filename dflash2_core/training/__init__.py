"""How a drafter is made (reference, section 9).

prompts.py      prompts from a file, as token ids
documents.py    prompts with the target's responses, on disk as safetensors
regenerate.py   the responses: written by the target, in batches
responses.py    the documents of a run: regenerated once, then read from its folder
features.py     one pass of the frozen target over a batch: taps and final hidden states
blocks.py       random anchors and their blocks; who may see whom
losses.py       unary and selector losses, position weights
shape.py        the shape of a new drafter for a given target
start.py        a new drafter, which begins as an exact DFlash 1; parts that stay as they began
optimizers.py   AdamW or Muon, warm-up and cosine
muon.py         Muon in the parameters' own dtype
evaluation.py   acceptance length, recall@K and oracle length on held-out documents
checkpoints.py  everything a run needs to go on as if it had never stopped
loop.py         the training loop
"""
