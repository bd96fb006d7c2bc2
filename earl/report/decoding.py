"""Decodes token ids for display: each sampled token keeps the text that it added."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""A tokenizer's output for a character whose bytes continue in later tokens."""
_WINDOW = 6
"""Tokens of context that influence decoding (spaces between words)."""
_LONGEST = 8
"""A character has at most 4 bytes; a longer run without a complete character is not text."""


class Decoder:
    """Decodes single tokens. Without a tokenizer, tokens are shown as numbers."""

    def __init__(self, tokenizer: "Tokenizer | None") -> None:
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size() if tokenizer else 0
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        self._control = frozenset(token for token, content in added.items() if content.special)

    def is_control(self, token: int) -> bool:
        return token in self._control

    def whole(self, ids: Sequence[int]) -> str:
        if self._tokenizer and all(0 <= token < self._size for token in ids):
            return self._decode(ids)
        return "".join(text for text, _, _ in self.pieces(ids))

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Text, first and past-last index of each token, or of tokens that make one character, such as ("é", 1, 3)."""
        start = 0
        while start < len(ids):
            end = start + 1
            text = self._added(ids, start, end)
            while text.endswith(UNFINISHED) and end < min(len(ids), start + _LONGEST):
                end += 1
                text = self._added(ids, start, end)
            if end > start + 1 and UNFINISHED in text:  # not a character after all, so the token is taken alone
                end = start + 1
                text = self._added(ids, start, end)
            yield text, start, end
            start = end

    def _added(self, ids: Sequence[int], start: int, end: int) -> str:
        """The text that ids[start:end] add to the tokens before them; their numbers if they add none."""
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
