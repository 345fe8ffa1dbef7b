"""A byte-level BPE tokenizer from a Hugging Face folder, as GGUF keys.

llama.cpp has the pre-tokenizers built in and knows them by name; here the name follows from what `tokenizer.json` says of
its pre-tokenizer, and one that is none of these is refused: take the target's GGUF then, where the name stands already.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, TokenType

from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.documents import parse_object, read_object
from dflash2_core.config.reading import placed, shown
from dflash2_core.errors import CheckpointError, CompatibilityError
from gguf_export.header import Key

MAX_BYTES = 128 * 2**20
CONTRACTIONS, SPACES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    # the pattern a text is split by -> llama.cpp's name
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}": "qwen2",
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}": "llama-bpe",
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}": "qwen35",
}
IGNORES_MERGES = {"llama-bpe"}
"""Pre-tokenizers with which llama.cpp takes a piece that is a whole token as it is, merges or not."""
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown", "sep": "seperator", "cls": "cls"}  # sic, in ggml


def read_tokenizer(folder: Path, vocab_size: int) -> list[Key]:
    """The `tokenizer.*` keys for the tokenizer in `folder`; ids without a token up to `vocab_size` are marked unused.

    Raises CheckpointError for files that are no tokenizer's, CompatibilityError for a kind that is not supported.
    """
    tokenizer = _document(folder / "tokenizer.json")
    pre = _pre_tokenizer(tokenizer, folder)
    tokens = _tokens(tokenizer, vocab_size, folder)
    ids = {text: index for index, (text, _) in enumerate(tokens)}
    stated = _stated(folder)
    strings, integers = GGUFValueType.STRING, GGUFValueType.INT32
    keys = [
        Key("tokenizer.ggml.model", strings, "gpt2"),
        Key("tokenizer.ggml.pre", strings, pre),
        Key("tokenizer.ggml.tokens", GGUFValueType.ARRAY, [text.encode() for text, _ in tokens], strings),
        Key("tokenizer.ggml.token_type", GGUFValueType.ARRAY, [int(kind) for _, kind in tokens], integers),
        Key("tokenizer.ggml.merges", GGUFValueType.ARRAY, _merges(tokenizer, folder), strings),
    ]
    special = {name: ids[text] for name in SPECIAL if (text := _content(stated.get(f"{name}_token"))) in ids}
    keys += [Key(f"tokenizer.ggml.{SPECIAL[name]}_token_id", GGUFValueType.UINT32, special[name]) for name in special]
    begins, ends = _added_around(tokenizer)
    keys += [
        Key("tokenizer.ggml.add_bos_token", GGUFValueType.BOOL, begins is not None and begins == special.get("bos")),
        Key("tokenizer.ggml.add_eos_token", GGUFValueType.BOOL, ends is not None and ends == special.get("eos")),
    ]
    return keys


def _document(path: Path) -> dict[str, Any]:
    if not is_regular(path):
        raise CheckpointError(
            f"{placed(path)} does not exist: a tokenizer is taken from the target's GGUF, or from a folder with a "
            "byte-level BPE tokenizer.json; SentencePiece models are not read"
        )
    if (size := path.stat().st_size) > MAX_BYTES:
        raise CheckpointError(f"{placed(path)} has {size} bytes; a tokenizer has at most {MAX_BYTES}")
    return parse_object(path.read_bytes(), placed(path), CheckpointError)


def _stated(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object(path, CheckpointError) if is_regular(path) else {}


def _content(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def _pre_tokenizer(tokenizer: Mapping[str, Any], folder: Path) -> str:
    model = tokenizer.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE":
        raise _not_supported(folder, f"its model is {shown(model.get('type') if isinstance(model, Mapping) else model)}")
    for option in ("byte_fallback", "fuse_unk", "unk_token", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise _not_supported(folder, f"its model has {option} {shown(model[option])}")
    normalizer = tokenizer.get("normalizer")
    if normalizer is not None and not _is("NFC", normalizer):
        found = normalizer.get("type") if isinstance(normalizer, Mapping) else normalizer
        raise _not_supported(folder, f"its normalizer is {shown(found)}")
    name = _name_of(_steps(tokenizer.get("pre_tokenizer")))
    if name is None:
        raise _not_supported(folder, f"its pre-tokenizer is {shown(tokenizer.get('pre_tokenizer'))}")
    if bool(model.get("ignore_merges")) != (name in IGNORES_MERGES):
        raise _not_supported(folder, f"its pre-tokenizer is that of {name} but ignore_merges is {model.get('ignore_merges')}")
    return name


def _not_supported(folder: Path, found: str) -> CompatibilityError:
    return CompatibilityError(
        f"the tokenizer in {placed(folder)} is not supported, since {found}: from a folder only byte-level BPE with the "
        "pre-tokenizer of gpt-2, qwen2, qwen35 or llama-bpe is read; give the target's GGUF instead"
    )


def _is(kind: str, step: Any) -> bool:
    return isinstance(step, Mapping) and step.get("type") == kind


def _steps(pre: Any) -> Sequence[Any]:
    if _is("Sequence", pre) and isinstance(pre.get("pretokenizers"), list):
        found: list[Any] = pre["pretokenizers"]
        return found
    return [pre]


def _name_of(steps: Sequence[Any]) -> str | None:
    """None for steps that llama.cpp has no name for, as far as this project knows."""
    if not steps:
        return None
    *splits, last = steps
    if not _is("ByteLevel", last) or last.get("add_prefix_space"):
        return None
    if not splits:
        return "gpt-2" if last.get("use_regex", True) else None
    split = splits[0]
    if len(splits) > 1 or last.get("use_regex", True) or not _is("Split", split):
        return None
    if split.get("behavior") != "Isolated" or split.get("invert") or not isinstance(split.get("pattern"), Mapping):
        return None
    pattern = split["pattern"].get("Regex")
    return SPLITS.get(pattern) if isinstance(pattern, str) else None


def _tokens(tokenizer: Mapping[str, Any], vocab_size: int, folder: Path) -> list[tuple[str, TokenType]]:
    where = placed(folder / "tokenizer.json")
    found: dict[int, tuple[str, TokenType]] = {}
    vocabulary, added = tokenizer["model"].get("vocab"), tokenizer.get("added_tokens") or []
    if not isinstance(vocabulary, Mapping) or not isinstance(added, list):
        raise CheckpointError(f"{where} has no vocabulary")
    entries = [(index, text, TokenType.NORMAL) for text, index in vocabulary.items()]
    for token in added:
        if not isinstance(token, Mapping):
            raise CheckpointError(f"{where} holds the added token {shown(token)}")
        kind = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
        entries.append((token.get("id"), token.get("content"), kind))
    for index, text, kind in entries:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0 or not _is_text(text):
            raise CheckpointError(f"{where} holds the token {shown(text)} with the id {shown(index)}")
        if index in found and found[index][0] != text:
            raise CheckpointError(f"{where} gives the id {index} to {shown(found[index][0])} and to {shown(text)}")
        found[index] = (text, kind)
    if found and max(found) >= vocab_size:
        raise CompatibilityError(f"{where} has the id {max(found)} but the target's vocab_size is {vocab_size}")
    return [found.get(index, (f"[PAD{index}]", TokenType.UNUSED)) for index in range(vocab_size)]


def _merges(tokenizer: Mapping[str, Any], folder: Path) -> list[bytes]:
    stated = tokenizer["model"].get("merges")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in stated] if isinstance(stated, list) else []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(_is_text(part) and " " not in part for part in pair):
            raise CheckpointError(f"{placed(folder / 'tokenizer.json')} holds the merge {shown(pair)}")
    if not pairs:
        raise _not_supported(folder, "it has no merges, and llama.cpp needs at least one")
    return [" ".join(pair).encode() for pair in pairs]


def _is_text(value: object) -> bool:
    # A lone surrogate, which JSON can hold, is no text that a file could.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _added_around(tokenizer: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Ids of the tokens that the tokenizer puts before and after a text."""
    for step in _listed(_mapping(tokenizer.get("post_processor")).get("processors")) or [tokenizer.get("post_processor")]:
        single = _listed(_mapping(step).get("single"))
        if _is("TemplateProcessing", step) and single:
            return _special(step, single[0]), _special(step, single[-1])
    return None, None


def _special(step: Mapping[str, Any], part: object) -> int | None:
    name = _mapping(_mapping(part).get("SpecialToken")).get("id")
    known = _mapping(step.get("special_tokens"))
    ids = _listed(_mapping(known.get(name)).get("ids")) if isinstance(name, str) else []
    return ids[0] if len(ids) == 1 and isinstance(ids[0], int) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []
