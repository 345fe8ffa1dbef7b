"""What an engine under test is asked: the built-in prompts, and the options that hit a block at each of its places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from dflash2_core.assets import held_out_prompts
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError
from dflash2_core.sampling import SamplingParams

Encode = Callable[[str], list[int]]
"""text -> ids of the target's tokenizer, special tokens read as such"""

NEW_TOKENS = 64
PER_KIND = 10
LONG = 256  # ids of a long prompt
QUESTIONS = (
    "What is 17 + 25?",
    "Name the three primary colours.",
    "Write a function that reverses a list.",
    "Why is the sky blue? Answer in one sentence.",
    "Translate 'good morning' into French.",
    "List the files of a folder in Python.",
)
UNICODE = (
    "na\u00efve caf\u00e9 \u2014 \u00fcber",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f3fd\u200d\U0001f680 = ",
    "a\u0301e\u0308\u0000x",
)
SHORT = ("a", "\n", "1", "The")
STOPS = ("\n\n", "\n", ":", "the")
SAMPLINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.0, top_k=20),
)


@dataclass(frozen=True)
class Case:
    """One request. kind: what it stands for, in a report."""

    kind: str
    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def tells_by_text(self) -> bool:
        """Whether its text and not its ids are what a user gets: ids behind a stop string are for nobody."""
        return bool(self.params.stop)


def encoder(folder: Path) -> Encode:
    """Of the tokenizer.json in a folder; CheckpointError where there is none that can be read."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as problem:  # what the reader raises is a bare Exception
        raise CheckpointError(f"{placed(folder / 'tokenizer.json')} is no tokenizer that can be read: {problem}") from None
    return lambda text: list(tokenizer.encode(text).ids)


def greedy_cases(encode: Encode, num_drafts: int, *, per_kind: int = PER_KIND) -> list[Case]:
    """Cases whose ids have to be those of plain decoding.

    num_drafts  of a full block: budgets end at every place of the first two
    per_kind    prompts of each kind of text, at most
    """
    greedy = SamplingParams(max_new_tokens=NEW_TOKENS)
    texts = {domain: _held_out(domain, per_kind) for domain in ("code", "docs", "arithmetic")}
    texts |= {
        "chat": [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS][:per_kind],
        "very short": list(SHORT[:per_kind]),
        "unicode": list(UNICODE[:per_kind]),
    }
    cases = [Case(kind, ids, greedy) for kind, found in texts.items() for ids in _encoded(encode, found)]
    cases += [Case("long", ids, greedy) for ids in _long(encode, 2)]
    by_stop = zip(_encoded(encode, _held_out("docs", len(STOPS))), STOPS, strict=False)
    cases += [Case("stop string", ids, replace(greedy, stop=(stop,))) for ids, stop in by_stop]
    prompts = islice(cycle(_encoded(encode, _held_out("code", 3))), 2 * (num_drafts + 1) + 1)
    cases += [Case("budget", ids, replace(greedy, max_new_tokens=1 + i)) for i, ids in enumerate(prompts)]
    return cases


def sampled_cases(
    encode: Encode, num_tokens: int, *, samplings: Sequence[SamplingParams] = SAMPLINGS, num_prompts: int | None = None
) -> list[Case]:
    """Cases whose tokens have to follow the target's law: about `num_tokens` in all, if no text ends early.

    num_prompts: fewer prompts, each asked more often, for texts that have to meet
    """
    prompts = _encoded(encode, [text for domain in ("code", "docs", "arithmetic") for text in _held_out(domain, PER_KIND)])
    prompts = prompts[:: -(-len(prompts) // num_prompts)] if num_prompts else prompts
    requests = max(1, -(-num_tokens // NEW_TOKENS))
    each = zip(cycle(samplings), cycle(prompts[i] for i in range(len(prompts)) for _ in samplings), strict=False)
    return [
        Case(_name(sampling), prompt, replace(sampling, seed=seed, max_new_tokens=NEW_TOKENS))
        for seed, (sampling, prompt) in enumerate(islice(each, requests))
    ]


def _name(params: SamplingParams) -> str:
    parts = [f"T {params.temperature:g}"]
    parts += [f"top-k {params.top_k}"] if params.top_k else []
    parts += [f"top-p {params.top_p:g}"] if params.top_p < 1 else []
    return ", ".join(parts)


def _held_out(domain: str, count: int) -> list[str]:
    return [prompt["text"] for prompt in held_out_prompts() if prompt["domain"] == domain][:count]


def _encoded(encode: Encode, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """What a tokenizer reads nothing in is no prompt."""
    return [ids for ids in (tuple(encode(text)) for text in texts) if ids]


def _long(encode: Encode, count: int) -> list[tuple[int, ...]]:
    ids: list[int] = []
    for text in _held_out("docs", 70):
        ids += encode(text + "\n")
    whole = (ids * (1 + count * LONG // max(1, len(ids))))[: count * LONG]
    return [tuple(whole[i * LONG : (i + 1) * LONG]) for i in range(count)]
