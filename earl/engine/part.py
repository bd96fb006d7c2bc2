"""What one process of a learner has of a step's rows: all of them, or those that were sent to it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from earl.batch import Rows

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a process, n of N, and what it has to know of the others to learn with their processes.

    Example:
        Part(numbers=[0, 2], learned=[7, 5, 5], turns=[2, 1, 1], alone=True)   # row 1 lies with another process
    """

    numbers: Numbers
    """[n], which rows are here, ascending."""
    learned: Numbers
    """[N], tokens of each row that are learned from."""
    turns: Numbers
    """[N], places in each row where a value is read."""
    alone: bool
    """Whether nobody else computes the rows that are here; else all processes have all rows and share them."""

    @classmethod
    def whole(cls, rows: Rows) -> Self:
        """All rows, on every process."""
        counts = (_per_row(rows, rows.mask), _per_row(rows, rows.value_mask))
        return cls(np.arange(rows.num_rows), *counts, alone=False)

    def places(self, rows: Numbers) -> Numbers:
        """Where those of `rows` lie that are here, in their order."""
        place = np.full(len(self.learned), -1)
        place[self.numbers] = np.arange(len(self.numbers))
        found: Numbers = place[rows]
        return found[found >= 0]

    def counts(self, rows: Numbers) -> tuple[int, int]:
        """Tokens that are learned from and values that are read, of `rows` wherever they lie; at least 1."""
        return max(1, int(self.learned[rows].sum())), max(1, int(self.turns[rows].sum()))


def minibatches(order: Generator, rows: int, count: int) -> list[Numbers]:
    """An epoch: all rows in a new order, cut into `count` parts, but for empty ones."""
    return [part for part in np.array_split(order.permutation(rows), count) if len(part)]


def order_of(seed: int) -> Generator:
    """What the rows of an update are ordered by."""
    return np.random.Generator(np.random.PCG64(seed))


def _per_row(rows: Rows, marked: NDArray[np.bool_]) -> Numbers:
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    return np.add.reduceat(marked, rows.offsets[:-1], dtype=np.int64)
