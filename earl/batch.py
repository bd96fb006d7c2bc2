"""What the learner learns from: samples, and batches that are ragged and packed, never padded."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one forward pass each, laid end to end. T is the number of tokens over all rows.

    Row i holds positions offsets[i]:offsets[i + 1]. `mask` marks the tokens that are learned from.

    Example:
        offsets = [0, 7, 12]              # two rows, 7 and 5 tokens
        mask    = [0 0 0 0 0 1 1 | 0 0 0 1 1]
        turns   = [- - - - 0 0 0 | - - 1 1 1]   # -1 is written as -; the first of each run is where a value is read
    """

    offsets: NDArray[np.int64]  # [N + 1]
    tokens: NDArray[np.int32]  # [T]
    mask: NDArray[np.bool_]  # [T]
    targets: NDArray[np.int32]  # [T], what is learned at the position; the token itself but in imitation
    logprobs: NDArray[np.float32]  # [T], the sampler's
    turns: NDArray[np.int32]  # [T], number of the turn that a token belongs to, -1 for none
    value_mask: NDArray[np.bool_]  # [T], the last token of each turn's prompt, where a value is read

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per row, [N]."""
        return np.diff(self.offsets)

    @property
    def num_turns(self) -> int:
        """K."""
        return int(self.turns.max(initial=-1)) + 1

    def select(self, rows: NDArray[np.int64]) -> Self:
        """The given rows, in the given order."""
        index = _positions(self.offsets, rows)
        columns = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "offsets"}
        return type(self)(offsets=offsets_of(self.lengths[rows]), **columns)


@dataclass(frozen=True, slots=True)
class Batch(Rows):
    """Rows with all that the update needs; columns are 0 where their mask is not set."""

    advantages: NDArray[np.float32]  # [T] at mask
    reference: NDArray[np.float32]  # [T] at mask, log-probs of the reference model
    returns: NDArray[np.float32]  # [T] at value_mask, what the value head learns


def distinct(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that one forward pass treats alike: same tokens, learned at the same places, with the same targets.

    Self-play of a policy that knows what it wants makes many; each kind needs to be scored once only.

    Returns:
        the first row of each kind [U], and the kind of every row [N].
    """
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
    """Where the elements of the chosen rows lie, when row i has counts[i] of them, end to end.

    Example:
        >>> repeats(np.array([2, 1, 3]), np.array([2, 0, 0])).tolist()
        [3, 4, 5, 0, 1, 0, 1]
    """
    return _positions(offsets_of(counts), chosen)


def _positions(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the given rows, laid end to end."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row begins, and the end: [N + 1].

    Example:
        >>> offsets_of([7, 5]).tolist()
        [0, 7, 12]
    """
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def deal(lengths: NDArray[np.int64], shares: int) -> list[NDArray[np.int64]]:
    """Deal rows to `shares` shards of nearly equal tokens: longest first, each to the lightest shard.

    Example:
        >>> [rows.tolist() for rows in deal(np.array([5, 9, 4, 2]), 2)]   # 9 + 2 and 5 + 4
        [[1, 3], [0, 2]]
    """
    loads = [0] * shares
    dealt: list[list[int]] = [[] for _ in range(shares)]
    for row in np.argsort(-lengths, kind="stable"):
        lightest = loads.index(min(loads))
        loads[lightest] += int(lengths[row])
        dealt[lightest].append(int(row))
    return [np.array(rows, dtype=np.int64) for rows in dealt]


def chunks_by_tokens(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Cut rows into micro-batches of at most `max_tokens`; rows of one length stand together.

    A row longer than `max_tokens` forms a micro-batch of its own.

    Example:
        >>> [rows.tolist() for rows in chunks_by_tokens(np.array([5, 9, 4, 2]), 10)]   # 9 | 5 + 4 | 2
        [[1], [0, 2], [3]]
    """
    chunks: list[list[int]] = []
    room = 0
    for row in np.argsort(-lengths, kind="stable"):
        length = int(lengths[row])
        if not chunks or length > room:
            chunks.append([])
            room = max_tokens
        chunks[-1].append(int(row))
        room -= length
    return [np.array(rows, dtype=np.int64) for rows in chunks]
