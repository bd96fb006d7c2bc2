"""The rows of one process: ranges of tokens end to end, column by column, never padded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.dispatch.columns import Axis, Column
from earl.dispatch.spread import Numbers, Spread


@dataclass(frozen=True, slots=True)
class Shard:
    """What one process holds of some columns with one axis. T is the number of its tokens (or rows).

    Example:
        rows = [3, 8], starts = [0, 40], offsets = [0, 7, 12]   # row 3 from its first token, row 8 from its 41st
    """

    rows: Numbers
    """[n], their numbers, ascending."""
    starts: Numbers
    """[n], the first token held of each."""
    offsets: Numbers
    """[n + 1], where each begins in the columns."""
    columns: Mapping[str, NDArray[np.generic]]
    """[T], or [T, width], by name."""

    def begins(self, row: Numbers, start: Numbers) -> Numbers:
        """Where ranges of tokens begin in the columns, given their rows and first tokens. All have to be here."""
        at = np.searchsorted(self.rows, row)
        begins: Numbers = self.offsets[at] + start - self.starts[at]
        return begins

    def with_columns(self, more: Mapping[str, NDArray[np.generic]]) -> "Shard":
        """The same rows with more columns."""
        return Shard(self.rows, self.starts, self.offsets, {**self.columns, **more})


def ranges(starts: Numbers, lengths: Numbers) -> Numbers:
    """Consecutive numbers from each start, end to end.

    Example:
        >>> ranges(np.array([7, 2]), np.array([2, 3])).tolist()
        [7, 8, 2, 3, 4]
    """
    ends = np.cumsum(lengths)
    first: Numbers = np.repeat(starts - (ends - lengths), lengths)
    return first + np.arange(len(first))


def empty(spread: Spread, process: int, lengths: Numbers, axis: Axis, columns: Sequence[Column]) -> Shard:
    """Room for what a process holds of a spread.

    Args:
        lengths: tokens of each row, [N].
    """
    if axis == "row":
        spread, lengths = spread.flat(), np.ones_like(lengths)
    rows, starts, stops = spread.ranges(process, lengths)
    offsets = offsets_of(stops - starts)
    return Shard(rows, starts, offsets, {column.name: _room(column, int(offsets[-1])) for column in columns})


def _room(column: Column, count: int) -> NDArray[np.generic]:
    return np.empty((count, column.width) if column.width > 1 else count, np.dtype(column.kind))
