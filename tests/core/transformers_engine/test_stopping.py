"""Where a text ends: inside an accepted run, at the budget, at the context's edge, in the middle of a stop string."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dflash2_core import Chunk, Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.errors import SamplingError
from dflash2_core.transformers_engine import Target, requests
from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.detokenizer import Detokenizer
from tests.core import toys
from tests.core.toys import EOS, MASK, PAD, VOCABULARY
from tests.core.transformers_engine.conftest import complete

PROMPT = [3, 1, 2]
B = 8  # rows of a block: 7 drafts

# Many short runs: two layers are enough to have a text of one's own.
toy_model = partial(toys.toy_model, num_hidden_layers=2)
FITS = {"num_target_layers": 2, "target_layer_ids": (0,)}
oracle, always_wrong, random_drafter = (partial(make, **FITS) for make in (toys.oracle, toys.always_wrong, toys.random_drafter))


class DictatedTarget(Target):
    """Writes `text` after PROMPT and then id 0, whatever it is shown; its own text while there is none."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast | None = None) -> None:
        super().__init__(toy_model(), tokenizer)
        self.text: Sequence[int] | None = None
        self.model.register_forward_hook(self._dictate, with_kwargs=True)

    def _dictate(self, module: object, args: object, asked: dict[str, Any], output: Any) -> None:
        if self.text is not None:
            judged = asked["position_ids"][0, -output.logits.shape[1] :] + 1 - len(PROMPT)
            ids = [self.text[at] if at < len(self.text) else 0 for at in judged.tolist()]
            output.logits = 100 * torch.nn.functional.one_hot(torch.tensor([ids]), VOCABULARY).float()


@pytest.fixture(scope="module")
def target() -> DictatedTarget:
    return DictatedTarget()


@contextmanager
def writing(engine: TransformersEngine, text: Sequence[int]) -> Iterator[None]:
    target = engine.target
    assert isinstance(target, DictatedTarget)
    target.text = text
    try:
        yield
    finally:
        target.text = None


def engines(target: Target, text: Sequence[int], block_size: int = B) -> dict[str, TransformersEngine]:
    """Plain, and with drafters that know all, nothing, and every other id of the text."""
    half = oracle(PROMPT, text)
    half.script = {at: token if at % 3 else (token + 1) % VOCABULARY for at, token in half.script.items()}
    drafters: dict[str, Drafter | None] = {
        "plain": None,
        "oracle": oracle(PROMPT, text),
        "half": half,
        "always wrong": always_wrong(PROMPT, text),
    }
    return {
        name: TransformersEngine(target, drafter, block_size=block_size if drafter else None)
        for name, drafter in drafters.items()
    }


def assert_counts_are_of_what_was_committed(completion: Completion) -> None:
    """Every committed id but the first came from a pass that is counted; none is counted that was not committed."""
    stats = completion.stats
    assert stats.num_committed + stats.skipped.total() == len(completion.token_ids) - 1
    assert stats.num_accepted <= stats.num_drafted
    assert stats.num_accepted <= stats.num_committed <= stats.num_accepted + stats.num_cycles
    assert sum(stats.accepted_per_position) == stats.num_accepted
    assert sum(stats.drafted_per_position) == stats.num_drafted


def dictated(engine: TransformersEngine, text: Sequence[int], **options: object) -> Completion:
    with writing(engine, text):
        completion = complete(engine, PROMPT, **options)
    assert_counts_are_of_what_was_committed(completion)
    return completion


TEXT = [4, 9, 14, 19, 24, 29, 5, 10, 15, 20, 25, 30, 6, 11, 16, 21, 26, 31, 7, 12]


@pytest.mark.parametrize("way", ["end of sequence", "stop id"])
@pytest.mark.parametrize("at", range(B + 2))
def test_an_id_that_ends_the_text_ends_it_at_every_place_of_an_accepted_run(at: int, way: str, target: Target) -> None:
    ending = EOS if way == "end of sequence" else 33
    text = [*TEXT[:at], ending, *TEXT[at:]]
    options: dict[str, object] = {"ignore_eos": False} if way == "end of sequence" else {"stop_token_ids": [33, 34]}
    for name, engine in engines(target, text).items():
        completion = dictated(engine, text, **options)
        assert completion.token_ids == [*TEXT[:at], ending], name
        assert completion.finish_reason == "stop"
        if name == "oracle" and 2 <= at <= B:  # the first id comes from the prefill, and the run holds the ending
            assert completion.stats.num_cycles == 1
            assert completion.stats.num_cut == (at < B)
            assert completion.stats.num_accepted == min(at, B - 1)


def test_past_an_end_of_sequence_that_is_ignored_the_text_goes_on(target: Target) -> None:
    text = [*TEXT[:4], EOS, *TEXT[4:]]
    for name, engine in engines(target, text).items():
        assert dictated(engine, text, max_new_tokens=12, ignore_eos=True).token_ids == text[:12], name


def test_ends_of_the_targets_own_text_are_where_plain_decoding_has_them(target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    for ending in sorted(set(text)):
        expected = text[: text.index(ending) + 1]
        for name, engine in engines(target, text).items():
            completion = complete(engine, PROMPT, stop_token_ids=[ending])
            assert completion.token_ids == expected, name
            assert completion.finish_reason == "stop"
            assert_counts_are_of_what_was_committed(completion)


def only_the_last_id_can_end_it(self: requests.Request, ids: Sequence[int]) -> list[int]:
    self.output.extend(ids)
    if ids and (ids[-1] in self.stop_ids or self.remaining <= 0):
        self.finish_reason = "stop" if ids[-1] in self.stop_ids else "length"
    return list(ids)


def test_an_end_inside_an_accepted_run_that_is_overlooked_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests.Request, "commit", only_the_last_id_can_end_it)
    with pytest.raises(AssertionError):
        test_an_id_that_ends_the_text_ends_it_at_every_place_of_an_accepted_run(4, "stop id", target)


@pytest.mark.parametrize("block_size", [2, 5, B])
def test_a_budget_is_met_exactly_whatever_is_accepted(block_size: int, target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT, max_new_tokens=2 * B + 1).token_ids
    for budget in range(1, 2 * block_size + 2):
        for name, engine in engines(target, text, block_size).items():
            completion = complete(engine, PROMPT, max_new_tokens=budget)
            assert completion.token_ids == text[:budget], name
            assert completion.finish_reason == "length"
            assert_counts_are_of_what_was_committed(completion)
            if name == "oracle":
                assert completion.stats.num_cut == 0
                assert completion.stats.num_target_passes == -(-(budget - 1) // block_size)
                assert completion.stats.num_accepted == completion.stats.num_drafted


@pytest.mark.parametrize("budget", [1, 2, B, B + 1, B + 2])
def test_a_stop_before_or_at_the_budget_is_a_stop_and_past_it_the_length_ends_the_text(budget: int, target: Target) -> None:
    for at, reason in ((budget - 2, "stop"), (budget - 1, "stop"), (budget, "length")):
        if at < 0:
            continue
        text = [*TEXT[:at], 33, *TEXT[at:]]
        for name, engine in engines(target, text).items():
            completion = dictated(engine, text, stop_token_ids=[33], max_new_tokens=budget)
            assert completion.token_ids == text[: min(at + 1, budget)], name
            assert completion.finish_reason == reason


def test_a_budget_that_is_overrun_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "_drafts_to_ask", lambda self, row, request, width: (width, ""))  # blocks that never shrink
    with pytest.raises(AssertionError):
        test_a_budget_is_met_exactly_whatever_is_accepted(B, target)


SPECIAL = {PAD: "<pad>", EOS: "<eos>", MASK: "<mask>"}


def tokenizer_of(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Ids 0.. stand for these byte-level words; the last three ids are special."""
    vocabulary = {word: i for i, word in enumerate(words)} | {name: i for i, name in SPECIAL.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL.values()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", mask_token="<mask>")


def byte_words(data: bytes) -> list[str]:
    """GPT-2's printable stand-ins for bytes."""
    return [_BYTES[byte] for byte in data]


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}

# One id a byte: ASCII, and the bytes of é, €, ü, 漢 and an emoji, which no id holds as a whole.
PIECES = b"abcdefghijkl \n" + bytes(sorted(set("é€ü漢😀".encode())))
LETTERS = tokenizer_of(byte_words(PIECES))


def ids_of(text: str) -> list[int]:
    return [PIECES.index(byte) for byte in text.encode()]


@pytest.fixture(scope="module")
def lettered() -> DictatedTarget:
    return DictatedTarget(LETTERS)


def streamed(engine: TransformersEngine, text_ids: Sequence[int], **options: object) -> list[Chunk]:
    params = SamplingParams(**{"max_new_tokens": len(text_ids)} | options)  # type: ignore[arg-type]
    with writing(engine, text_ids):
        return list(engine.stream(PROMPT, params))


def assert_stream_says_what_the_completion_says(chunks: Sequence[Chunk]) -> Completion:
    *earlier, last = chunks
    completion = last.completion
    assert completion is not None
    assert all(chunk.completion is None for chunk in earlier)
    assert "".join(chunk.text for chunk in chunks) == completion.text, "a stream cannot take text back"
    assert [token for chunk in chunks for token in chunk.token_ids] == completion.token_ids
    assert_counts_are_of_what_was_committed(completion)
    return completion


def assert_stops(target: Target, text: str, stop: Sequence[str], block_size: int = B) -> None:
    """Each drafter's text, ids and reason are those of plain decoding, found here by looking at the text id by id."""
    ids = ids_of(text)
    expected, length, reason = text, len(ids), "length"
    for n in range(1, len(ids) + 1):
        so_far = bytes(PIECES[i] for i in ids[:n]).decode(errors="ignore")
        found = [at for at in map(so_far.find, stop) if at >= 0]
        if found:
            expected, length, reason = so_far[: min(found)], n, "stop"
            break
    for name, engine in engines(target, ids, block_size).items():
        completion = assert_stream_says_what_the_completion_says(streamed(engine, ids, stop=list(stop)))
        assert (completion.text, completion.token_ids, completion.finish_reason) == (expected, ids[:length], reason), name
        assert name == "plain" or len(ids) < 3 or length < 3 or completion.stats.num_drafted > 0


@pytest.mark.parametrize("block_size", [3, B])
@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("abcdefghijklabcdefghijkl", ["ijk"]),  # over the edge of two blocks
        ("abcdefghijklabcdefghijkl", ["cd"]),  # in the middle of a block
        ("abcdefghijklabcdefghijkl", ["a"]),  # the very first id
        ("abcdefghijklabcdefghijkl", ["l"]),
        ("abcdefghijklabcdefghijkl", ["lab", "kla"]),  # both begin before either is complete
        ("abcdefghijklabcdefghijkl", ["fgh", "efghij"]),  # one inside the other
        ("aabaabaacaab", ["aac"]),  # beginnings that come to nothing
        ("abababababac", ["ababac"]),
        ("abcdefghijkl", ["klm", "lk"]),  # complete nowhere, and one is held back to the end
        ("ab\n\ncd\n\n\nef", ["\n\n\n"]),
        ("caféé€ 漢😀 ab", ["€ "]),
        ("caféé€ 漢😀 ab", ["😀"]),
        ("é😀é😀üü", ["😀ü"]),
        ("abcdefg", []),
    ],
)
def test_a_stop_string_ends_the_text_where_it_is_complete(
    text: str, stop: list[str], block_size: int, lettered: Target
) -> None:
    assert_stops(lettered, text, stop, block_size)


@settings(max_examples=30)
@given(
    st.text("abé€", min_size=1, max_size=16),
    st.lists(st.text("abé€", min_size=1, max_size=4), max_size=3),
    st.integers(2, B),
)
def test_any_stop_strings_in_any_text(text: str, stop: list[str], block_size: int) -> None:
    assert_stops(_LETTERED, text, stop, block_size)


_LETTERED = DictatedTarget(LETTERS)


def test_a_stop_string_that_is_sought_once_a_block_is_caught(lettered: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = requests.Request.commit

    def whole_runs(self: requests.Request, ids: Sequence[int]) -> list[int]:
        pushed, self.detokenizer.push = self.detokenizer.push, lambda token: False  # type: ignore[method-assign]
        kept = commit(self, ids)
        self.detokenizer.push = pushed  # type: ignore[method-assign]
        if [token for token in kept if pushed(token)]:
            self.finish_reason = "stop"
        return kept

    monkeypatch.setattr(requests.Request, "commit", whole_runs)
    with pytest.raises(AssertionError):
        assert_stops(lettered, "abcdefghijklabcdefghijkl", ["cd"])


def test_a_stream_that_holds_nothing_back_is_caught(lettered: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detokenizer, "_held_back", lambda self: 0)
    with pytest.raises(AssertionError, match="take text back"):
        assert_stops(lettered, "abcdefghijklabcdefghijkl", ["ijk"])


@pytest.mark.parametrize("block_size", [2, 3, B])
def test_each_piece_of_a_stream_holds_all_whole_characters_so_far_and_no_half(
    block_size: int, lettered: DictatedTarget
) -> None:
    text = "é€ü漢😀é€ü漢😀 ab漢"
    ids = ids_of(text)
    for name, engine in engines(lettered, ids, block_size).items():
        chunks = streamed(engine, ids)
        assert assert_stream_says_what_the_completion_says(chunks).text == text, name
        shown, sent = "", b""
        for chunk in chunks:
            shown, sent = shown + chunk.text, sent + bytes(PIECES[i] for i in chunk.token_ids)
            assert shown == sent.decode(errors="ignore"), name


def test_a_character_that_the_budget_cuts_in_two_is_shown_as_broken_at_the_very_end(lettered: Target) -> None:
    ids = ids_of("ab漢")[:-1]
    for name, engine in engines(lettered, ids).items():
        chunks = streamed(engine, ids)
        completion = assert_stream_says_what_the_completion_says(chunks)
        assert completion.text == LETTERS.decode(ids) == "ab\ufffd", name
        assert not any("\ufffd" in chunk.text for chunk in chunks[:-1]), name


def test_half_characters_streamed_at_once_are_caught(lettered: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2_core.transformers_engine.detokenizer.INCOMPLETE", "\0")
    with pytest.raises(AssertionError):
        test_each_piece_of_a_stream_holds_all_whole_characters_so_far_and_no_half(3, lettered)


def test_special_tokens_leave_no_text(lettered: Target) -> None:
    ids = [*ids_of("ab"), MASK, *ids_of("cd"), EOS]
    for name, engine in engines(lettered, ids).items():
        completion = assert_stream_says_what_the_completion_says(streamed(engine, ids, max_new_tokens=20))
        assert (completion.text, completion.token_ids, completion.finish_reason) == ("abcd", ids, "stop"), name


def test_a_stop_string_that_is_a_special_token_ends_the_text_at_its_id(lettered: Target) -> None:
    """It leaves no text in which it could be found; dropping it in silence would let the text run on."""
    ids = [*ids_of("ab"), MASK, *ids_of("cd")]
    for name, engine in engines(lettered, ids).items():
        completion = assert_stream_says_what_the_completion_says(streamed(engine, ids, stop=["<mask>", "zz"]))
        assert (completion.text, completion.token_ids, completion.finish_reason) == ("ab", ids[:3], "stop"), name


def test_a_special_token_that_no_configuration_names_is_one_all_the_same() -> None:
    """As Llama's are: marked in tokenizer.json alone."""
    unnamed = PreTrainedTokenizerFast(tokenizer_object=LETTERS.backend_tokenizer, eos_token="<eos>")
    assert "<mask>" not in unnamed.all_special_tokens
    test_a_stop_string_that_is_a_special_token_ends_the_text_at_its_id(DictatedTarget(unnamed))


@pytest.mark.parametrize("stop", ["<mask>a", "a<mask>"])
def test_a_stop_string_with_a_special_token_inside_is_refused(stop: str, lettered: Target) -> None:
    with pytest.raises(SamplingError, match="<mask>"):
        complete(TransformersEngine(lettered), PROMPT, stop=stop)


def test_a_stop_string_completed_by_the_budgets_last_id_is_a_stop(lettered: Target) -> None:
    ids = ids_of("abcdefgh")
    for name, engine in engines(lettered, ids).items():
        completion = assert_stream_says_what_the_completion_says(streamed(engine, ids, stop=["gh"]))
        assert (completion.text, completion.finish_reason) == ("abcdef", "stop"), name


def assert_asked_only_where_plain_decoding_asks(target: Target) -> None:
    """A grammar that has nothing to allow past its end."""
    text = [*TEXT[:5], EOS]

    def grammar(history: Tensor, logits: Tensor) -> Tensor:
        at = len(history) - len(PROMPT)
        assert at < len(text), "asked past the end"
        forced = torch.full_like(logits, -torch.inf)
        forced[text[at]] = 0.0
        return forced

    for name, engine in engines(target, [*text, *TEXT]).items():
        for temperature in (0.0, 1.0):
            options = {"ignore_eos": False, "temperature": temperature, "seed": 1}
            completion = complete(engine, PROMPT, logits_processor=grammar, **options)
            assert (completion.token_ids, completion.finish_reason) == (text, "stop"), name


def test_a_constraint_is_never_asked_past_the_end_of_the_text(target: Target) -> None:
    assert_asked_only_where_plain_decoding_asks(target)


def test_a_constraint_that_is_asked_past_the_end_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dflash2_core.transformers_engine.judge._drafts_before_an_end", lambda proposal, stop_ids: proposal.lengths
    )
    with pytest.raises(AssertionError, match="asked past the end"):
        assert_asked_only_where_plain_decoding_asks(target)


def all_bytes() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab={_BYTES[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTES = all_bytes()


def play(data: bytes, groups: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], str]:
    """Push the bytes in groups as blocks would; what was streamed, and the text in the end."""
    detokenizer, pieces, at = Detokenizer(BYTES, stop), [], 0
    for size in [*groups, len(data)]:
        for byte in data[at : at + size]:
            if detokenizer.push(byte):
                return [*pieces, detokenizer.finish()], detokenizer.text
        at += size
        pieces.append(detokenizer.delta())
    return [*pieces, detokenizer.finish()], detokenizer.text


@given(st.binary(max_size=24) | st.text(max_size=8).map(str.encode), st.lists(st.integers(1, 8), max_size=8))
def test_whatever_the_bytes_the_pieces_add_up_to_what_decoding_at_once_gives(data: bytes, groups: list[int]) -> None:
    pieces, text = play(data, groups)
    assert "".join(pieces) == text == BYTES.decode(list(data))


@given(st.text("aé漢😀", max_size=10), st.lists(st.integers(1, 8), max_size=8))
def test_whole_characters_never_come_in_halves(text: str, groups: list[int]) -> None:
    pieces, whole = play(text.encode(), groups)
    assert whole == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stop_string_complete_in_an_id_that_goes_on_with_half_a_character_ends_the_text() -> None:
    vocabulary = {"Ġâ": 0, "a": 1, "b": 2}  # a space and the first byte of a character of three
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    detokenizer = Detokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), (" ",))
    assert not detokenizer.push(1)
    assert detokenizer.push(0)
    assert detokenizer.text == detokenizer.finish() == "a"


def test_whole_characters_are_streamed_at_once_however_many_broken_ones_follow() -> None:
    assert play(b"ab" + b"\x80" * 6, [8])[0][0] == "ab"


@given(
    st.text("ab漢", max_size=12),
    st.lists(st.text("ab漢", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 8), max_size=8),
)
def test_no_grouping_changes_where_a_stop_string_cuts(text: str, stop: list[str], groups: list[int]) -> None:
    one_by_one = play(text.encode(), [1] * len(text.encode()), stop)
    pieces, cut = play(text.encode(), groups, stop)
    assert "".join(pieces) == cut == one_by_one[1] == "".join(one_by_one[0])
    assert not any(candidate in cut for candidate in stop)


def test_without_a_tokenizer_the_text_stays_empty(target: Target) -> None:
    completion = complete(TransformersEngine(target, random_drafter()), PROMPT)
    assert completion.text == ""
    assert len(completion.token_ids) > 0
