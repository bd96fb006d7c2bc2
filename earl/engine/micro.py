"""A batch cut for one process: its share of the rows, in micro-batches that one forward pass each sees."""

from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows, chunks_by_tokens, deal, distinct
from earl.engine.score import Scorer, Scores, score, spread

R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """A micro-batch: rows of which no two are alike, and all rows that are like one of them."""

    kinds: R
    """[U] rows for one forward pass."""
    members: R
    """[N] rows, N ≥ U."""
    copies: NDArray[np.int64]
    """The kind of each member, [N]."""
    numbers: NDArray[np.int64]
    """The place of each member among the rows that the chunk was made of, [N]; empty for a silent one."""

    def scores(self, scorer: Scorer, temperature: float) -> Scores:
        """Scores of the members."""
        return spread(score(scorer, self.kinds, temperature), self.kinds, self.copies)


def chunks(rows: R, max_tokens: int, share: int, shares: int, lockstep: bool) -> list[Chunk[R]]:
    """The micro-batches of one of `shares` processes: of rows that are alike, each holds one and knows them all.

    Args:
        lockstep: every process gets as many micro-batches as the one that has most; the missing ones are silent.
    """
    first, kind = distinct(rows)
    lengths = rows.lengths[first]
    dealt = deal(lengths, shares)
    members = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    cut = [chunks_by_tokens(lengths[own], max_tokens) for own in (dealt if lockstep else [dealt[share]])]
    mine = [_chunk(rows, first, dealt[share][chosen], members) for chosen in cut[share if lockstep else 0]]
    missing = max(map(len, cut)) - len(mine)
    return mine + [silent(rows)] * missing if missing else mine


def _chunk(rows: R, first: NDArray[np.int64], kinds: NDArray[np.int64], members: list[NDArray[np.int64]]) -> Chunk[R]:
    of_kind = [members[number] for number in kinds]
    copies = np.repeat(np.arange(len(kinds)), [len(own) for own in of_kind])
    numbers = np.concatenate(of_kind)
    return Chunk(rows.select(first[kinds]), rows.select(numbers), copies, numbers)


def silent(rows: R) -> Chunk[R]:
    """A row with nothing to learn: a process without rows of its own adds zeros under the same names."""
    only = np.zeros(1, np.int64)
    row = rows.select(only) if rows.num_rows else _blank(rows)
    row = replace(row, mask=np.zeros_like(row.mask), value_mask=np.zeros_like(row.value_mask))
    return Chunk(row, row, only, np.zeros(0, np.int64))


def _blank(rows: R) -> R:
    """One token, where there is not a single row to take one from."""
    columns = {f.name: np.zeros(1, getattr(rows, f.name).dtype) for f in fields(rows) if f.name != "offsets"}
    return replace(rows, offsets=np.array([0, 1]), **columns)
