"""Training samples: ragged, packed rows and batches, never padded; cutting them into micro-batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one forward pass each, laid end to end. T is the number of tokens over all rows.

    Row i holds positions offsets[i]:offsets[i + 1]. `mask` marks the tokens in the loss.

    Example:
        offsets = [0, 7, 12]              # two rows, 7 and 5 tokens
        mask    = [0 0 0 0 0 1 1 | 0 0 0 1 1]
        turns   = [- - - - 0 0 0 | - - 1 1 1]   # -1 is written as -; the first of each run is where a value is read
    """

    offsets: NDArray[np.int64]  # [N + 1]
    tokens: NDArray[np.int32]  # [T]
    mask: NDArray[np.bool_]  # [T]
    targets: NDArray[np.int32]
    """[T], what is scored at the position: the token, or in imitation the label. -1 - x stands for the token, and for x
    beside it, which a teacher would have written."""
    logprobs: NDArray[np.float32]  # [T], of the sampler
    turns: NDArray[np.int32]  # [T], number of the token's turn, -1 for none
    value_mask: NDArray[np.bool_]  # [T], the last token of each turn's prompt, where a value is read

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def num_turns(self) -> int:
        return int(self.turns.max(initial=-1)) + 1

    def per_row(self, marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many tokens of each row are marked, [N]."""
        if not self.num_rows:
            return np.zeros(0, np.int64)
        return np.add.reduceat(marked, self.offsets[:-1], dtype=np.int64)

    def select(self, rows: NDArray[np.int64]) -> Self:
        index = repeats(self.lengths, rows)
        columns = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "offsets"}
        return type(self)(offsets=offsets_of(self.lengths[rows]), **columns)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, end to end; turns are not renumbered."""
        names = [f.name for f in fields(cls) if f.name != "offsets"]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(offsets=offsets_of(np.concatenate([part.lengths for part in parts])), **columns)


@dataclass(frozen=True, slots=True)
class Batch(Rows):
    """Rows with everything the update needs; columns are 0 outside their mask."""

    advantages: NDArray[np.float32]  # [T] at mask
    reference: NDArray[np.float32]  # [T] at mask, log-probs of the reference model
    returns: NDArray[np.float32]  # [T] at value_mask, targets of the value head
    values: NDArray[np.float32]  # [T] at value_mask, what it estimated before the update


def distinct(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group rows with equal tokens, targets and masks, which one forward pass can serve; self-play makes many of them.
    Returns the first row of each kind [U], and the kind of every row [N]."""
    kinds: dict[bytes, int] = {}
    first: list[int] = []
    kind = np.zeros(rows.num_rows, np.int64)
    for row in range(rows.num_rows):
        own = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        columns = (rows.tokens[own], rows.targets[own], rows.mask[own], rows.value_mask[own])
        key = b"".join(column.tobytes() for column in columns)
        kind[row] = kinds.setdefault(key, len(kinds))
        if kind[row] == len(first):
            first.append(row)
    return np.array(first, np.int64), kind


def repeats(counts: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the elements of the chosen rows, where row i has counts[i] elements, end to end."""
    offsets = offsets_of(counts)
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(offsets[row], offsets[row + 1]) for row in chosen)])


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Start of each row, and the total length: [N + 1]. Lengths [7, 5] give [0, 7, 12]."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def alike(rows: Rows) -> NDArray[np.int64]:
    """The rows in an order in which those that begin with the same tokens follow one another."""
    tokens = [rows.tokens[begin:end].tobytes() for begin, end in pairwise(rows.offsets.tolist())]
    return np.array(sorted(range(rows.num_rows), key=tokens.__getitem__), np.int64)


def chunks_by_tokens(
    lengths: NDArray[np.int64], max_tokens: int, order: NDArray[np.int64] | None = None
) -> list[NDArray[np.int64]]:
    """Cut rows into micro-batches of at most `max_tokens`, by default longest rows first; a longer row gets one of its
    own."""
    order = np.argsort(-lengths, kind="stable") if order is None else order
    chunks = bundles(order.tolist(), lengths.tolist().__getitem__, max_tokens)
    return [np.array(rows, dtype=np.int64) for rows in chunks]


T = TypeVar("T")


def bundles(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut neighbouring items into bundles of at most this size; a larger item gets one of its own."""
    bundle: list[T] = []
    total = 0
    for item in items:
        if bundle and total + size(item) > most:
            yield bundle
            bundle, total = [], 0
        bundle.append(item)
        total += size(item)
    if bundle:
        yield bundle
