"""What one side has and the other one needs, range by range."""

from dataclasses import dataclass

import numpy as np

from earl.dispatch.columns import Axis, Column
from earl.dispatch.routes import Demand
from earl.dispatch.spread import Numbers, Spread


@dataclass(frozen=True, slots=True)
class Leg:
    """Columns that lie spread alike."""

    columns: tuple[Column, ...]
    source: Spread

    @property
    def axis(self) -> Axis:
        """Of all of its columns."""
        return self.columns[0].axis

    @property
    def size_bytes(self) -> int:
        """Of a token, or of a row."""
        return sum(column.size_bytes for column in self.columns)

    def __post_init__(self) -> None:
        assert len({column.axis for column in self.columns}) == 1, "the columns of a leg have one axis"


@dataclass(frozen=True, slots=True)
class Segments:
    """Ranges that lie whole on one rank of the producers and are needed whole by one of the consumers, S of them."""

    row: Numbers
    start: Numbers
    stop: Numbers
    holders: Numbers
    """[S, tp of the producers], the processes that have each."""
    readers: Numbers
    """[S, tp of the consumers], those that need it."""

    @property
    def demand(self) -> Demand:
        """Who has and who needs how many tokens."""
        return Demand(self.stop - self.start, self.holders, self.readers)


def segments_of(lengths: Numbers, leg: Leg, target: Spread) -> Segments:
    """Cut every row of a leg where a range of either side ends."""
    source = leg.source
    if leg.axis == "row":
        lengths, source, target = np.ones_like(lengths), source.flat(), target.flat()
    given, wanted = source.bounds(lengths), target.bounds(lengths)
    start = np.maximum(given[:, :-1, None], wanted[:, None, :-1])  # [N, cp of the producers, cp of the consumers]
    stop = np.minimum(given[:, 1:, None], wanted[:, None, 1:])
    row, from_rank, to_rank = np.nonzero(start < stop)
    cuts = (start[row, from_rank, to_rank], stop[row, from_rank, to_rank])
    holders = source.processes[source.parts[row], from_rank]
    return Segments(row, *cuts, holders, target.processes[target.parts[row], to_rank])
