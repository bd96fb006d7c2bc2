"""A process's share of a batch, cut into micro-batches of one forward pass each."""

from dataclasses import dataclass, fields, replace
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from earl.batch import Rows, chunks_by_tokens, deal, distinct
from earl.engine.score import Scorer, Scores, score, spread

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowShare:
    """The n of N rows of a step that a process has, and what it has to know of the others to learn with them.

    Example:
        RowShare(numbers=[0, 2], learned=[7, 5, 5], turns=[2, 1, 1], alone=True)   # row 1 is on another process
    """

    numbers: Numbers  # [n], ascending
    learned: Numbers  # [N], trained tokens of each row
    turns: Numbers  # [N], value positions of each row
    alone: bool
    """Whether only this process computes its rows; otherwise all processes have all rows and share the work."""

    @classmethod
    def whole(cls, rows: Rows) -> Self:
        counts = rows.per_row(rows.mask), rows.per_row(rows.value_mask)
        return cls(np.arange(rows.num_rows), *counts, alone=False)

    def places(self, rows: Numbers) -> Numbers:
        """Indices, in this process, of those of `rows` that are here, in their order."""
        place = np.full(len(self.learned), -1)
        place[self.numbers] = np.arange(len(self.numbers))
        found: Numbers = place[rows]
        return found[found >= 0]

    def counts(self, rows: Numbers) -> tuple[int, int]:
        """Trained tokens and value positions of `rows`, wherever they lie; each at least 1."""
        return max(1, int(self.learned[rows].sum())), max(1, int(self.turns[rows].sum()))


def minibatches(order: Generator, rows: int, count: int) -> list[Numbers]:
    """One epoch: all rows in a new order, cut into `count` parts, without empty ones."""
    return [part for part in np.array_split(order.permutation(rows), count) if len(part)]


def order_of(seed: int) -> Generator:
    return np.random.Generator(np.random.PCG64(seed))


R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """A micro-batch: distinct rows, and all rows that are equal to one of them."""

    kinds: R  # [U] distinct rows for one forward pass
    members: R  # [N] rows, N ≥ U
    copies: NDArray[np.int64]  # [N], the index in `kinds` of each member
    numbers: NDArray[np.int64]
    """[N], the index of each member in the source rows; empty for a silent chunk."""

    def scores(self, scorer: Scorer, temperature: float) -> Scores:
        return spread(score(scorer, self.kinds, temperature), self.kinds, self.copies)


def chunks(rows: R, max_tokens: int, share: int, shares: int) -> list[Chunk[R]]:
    """The micro-batches of one of `shares` processes; equal rows are computed once."""
    first, kind = distinct(rows)
    own = deal(rows.lengths[first], shares)[share]
    members = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    cut = []
    for kinds in (own[some] for some in chunks_by_tokens(rows.lengths[first[own]], max_tokens)):
        numbers = np.concatenate([members[number] for number in kinds])
        copies = np.repeat(np.arange(len(kinds)), [len(members[number]) for number in kinds])
        cut.append(Chunk(rows.select(first[kinds]), rows.select(numbers), copies, numbers))
    return cut


def silent(rows: R) -> Chunk[R]:
    """A row with nothing to learn: it adds zeros under the same statistic names, for processes without rows."""
    only = np.zeros(1, np.int64)
    row = rows.select(only) if rows.num_rows else _blank(rows)
    row = replace(row, mask=np.zeros_like(row.mask), value_mask=np.zeros_like(row.value_mask))
    return Chunk(row, row, only, np.zeros(0, np.int64))


def _blank(rows: R) -> R:
    """One dummy token, when there are no rows."""
    columns = {f.name: np.zeros(1, getattr(rows, f.name).dtype) for f in fields(rows) if f.name != "offsets"}
    return replace(rows, offsets=np.array([0, 1]), **columns)
