"""Token ids back to text, for reading only: each sampled token keeps the text that it added."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer gives for a character whose bytes are spread over tokens that are still to come."""
_WINDOW = 6
"""Tokens before a token that decide how it decodes (spaces between words)."""
_LONGEST = 8
"""A character takes at most 4 bytes; a run of more tokens without a character is simply no text."""


class Decoder:
    """A tokenizer as a reader of single tokens. Without one, tokens are shown by their numbers."""

    def __init__(self, tokenizer: "Tokenizer | None") -> None:
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size() if tokenizer else 0
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        self._control = frozenset(token for token, content in added.items() if content.special)

    def is_control(self, token: int) -> bool:
        """Whether a token is a mark of the chat rather than text, such as the one that ends a reply."""
        return token in self._control

    def whole(self, ids: Sequence[int]) -> str:
        """The text of tokens, marks included."""
        if self._tokenizer and all(0 <= token < self._size for token in ids):
            return self._decode(ids)
        return "".join(text for text, _, _ in self.pieces(ids))

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Text, first and past-last index of each token, or of the few tokens that make one character.

        Example:
            ids of "a", "\\xc3", "\\xa9" -> ("a", 0, 1), ("é", 1, 3)
        """
        start = 0
        while start < len(ids):
            end = start + 1
            text = self._added(ids, start, end)
            while text.endswith(UNFINISHED) and end < min(len(ids), start + _LONGEST):
                end += 1
                text = self._added(ids, start, end)
            if end > start + 1 and UNFINISHED in text:  # no character after all: this token stands alone
                end = start + 1
                text = self._added(ids, start, end)
            yield text, start, end
            start = end

    def _added(self, ids: Sequence[int], start: int, end: int) -> str:
        """What ids[start:end] add to the text of the tokens before them; their numbers if that is nothing."""
        own = ids[start:end]
        if self._tokenizer is None or not all(0 <= token < self._size for token in own):
            return "".join(f"⟨token {token}⟩" for token in own)
        before = [token for token in ids[max(0, start - _WINDOW) : start] if 0 <= token < self._size]
        context, text = self._decode(before), self._decode([*before, *own])
        added = text[len(context) :] if text.startswith(context) else self._decode(own)
        return added or "".join(f"⟨token {token}⟩" for token in own)

    def _decode(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
