"""Ids to text as they come, never in half a character, and the place where a stop string ends it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"


class Detokenizer:
    """One request's text. `text` is what is certain so far, cut before a stop string once one is complete.

    Special tokens leave no text. Without a tokenizer the text stays empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._window = 0  # decoding starts here: a token before the unread ones, whose spacing may depend on it
        self._read = 0
        self.text = ""
        self._streamed = 0

    def push(self, token: int) -> bool:
        """Take one more id; True if a stop string is complete with it."""
        self._ids.append(token)
        if not self._stop:
            return False
        searched = max(0, len(self.text) - max(map(len, self._stop)) + 1)
        self._catch_up()
        if self._cut(searched):
            return True
        if self._tokenizer is None or self._read == len(self._ids):
            return False
        whole = self.text
        self.text += self._pending(len(self._ids)).rstrip(INCOMPLETE)
        if self._cut(searched):  # complete in an id that goes on with half a character
            return True
        self.text = whole
        return False

    def delta(self) -> str:
        """Text that is new since the last call and that no later id can take back."""
        self._catch_up()
        end = len(self.text) - self._held_back()
        new = self.text[self._streamed : end]
        self._streamed = max(self._streamed, end)
        return new

    def finish(self) -> str:
        """No more ids: what is left to stream, characters that stayed incomplete included."""
        if self._tokenizer is not None and self._read < len(self._ids):
            searched = max(0, len(self.text) - max(map(len, self._stop), default=1) + 1)
            self.text += self._pending(len(self._ids))
            self._read = self._window = len(self._ids)
            self._cut(searched)
        new = self.text[self._streamed :]
        self._streamed = len(self.text)
        return new

    def _catch_up(self) -> None:
        """Read as many ids as make whole characters: half a one at the end must not hold back those before it."""
        if self._tokenizer is None:
            return
        for end in range(len(self._ids), self._read, -1):
            pending = self._pending(end)
            if not pending.endswith(INCOMPLETE):
                self.text += pending
                self._window, self._read = self._read, end
                return

    def _pending(self, end: int) -> str:
        before = self._decode(self._ids[self._window : self._read])
        return self._decode(self._ids[self._window : end])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _cut(self, searched: int) -> bool:
        found = [at for at in (self.text.find(stop, searched) for stop in self._stop) if at >= 0]
        if not found:
            return False
        self.text = self.text[: min(found)]
        self._window = self._read = len(self._ids)
        return True

    def _held_back(self) -> int:
        """How much of the text's end may yet become a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
