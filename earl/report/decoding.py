"""Token ids back to text, for reading only: each sampled token keeps the text that it added."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for a character whose bytes are spread over tokens that are still to come."""
_WINDOW = 6
"""Tokens before a token that decide how it decodes (spaces between words)."""
_LONGEST = 8
"""A character takes at most 4 bytes, so 4 tokens; beyond this the bytes are simply wrong."""


def whole(tokenizer: "Tokenizer | None", ids: Sequence[int]) -> str:
    """The text of tokens, special ones included. Without a tokenizer, their numbers."""
    if tokenizer is None:
        return "".join(map(_numbered, ids))
    size = tokenizer.get_vocab_size()
    if all(0 <= token < size for token in ids):
        return tokenizer.decode(list(ids), skip_special_tokens=False)
    return "".join(text for text, _, _ in pieces(tokenizer, ids))


def pieces(tokenizer: "Tokenizer | None", ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Text, first and past-last index of each token, or of a few tokens that make one character together.

    Example:
        ids of "a", "\\xc3", "\\xa9" -> ("a", 0, 1), ("é", 1, 3)
    """
    start = 0
    while start < len(ids):
        end = start + 1
        text = _added(tokenizer, ids, start, end)
        while text.endswith(UNFINISHED) and end < min(len(ids), start + _LONGEST):
            end += 1
            text = _added(tokenizer, ids, start, end)
        if text.endswith(UNFINISHED):  # not a character after all: this token stands alone
            end = start + 1
            text = _added(tokenizer, ids, start, end)
        yield text, start, end
        start = end


def _added(tokenizer: "Tokenizer | None", ids: Sequence[int], start: int, end: int) -> str:
    """What ids[start:end] add to the text of the tokens before them; the token's number if that is nothing."""
    if tokenizer is None:
        return "".join(map(_numbered, ids[start:end]))
    before = list(ids[max(0, start - _WINDOW) : start])
    context = tokenizer.decode(before, skip_special_tokens=False)
    text = tokenizer.decode([*before, *ids[start:end]], skip_special_tokens=False)
    added = text[len(context) :] if text.startswith(context) else tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
    return added or "".join(map(_numbered, ids[start:end]))


def _numbered(token: int) -> str:
    return f"⟨token {token}⟩"
