"""Which process sends which tokens of which rows to which other one: pure, from the rows' lengths alone.

What a process has itself it keeps; the rest goes as routes.py says. Every process makes the same plan from the same
lengths, so that plans are not sent.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.routes import routes
from earl.dispatch.segments import Leg, segments_of
from earl.dispatch.signature import signature
from earl.dispatch.spread import Numbers, Spread


@dataclass(frozen=True, slots=True)
class Pieces:
    """Ranges of tokens on their way, M of them. Where source and destination are the same, the range is kept."""

    leg: Numbers
    hop: Numbers
    source: Numbers
    """The process that sends."""
    destination: Numbers
    row: Numbers
    start: Numbers
    """The first token, counted in the row."""
    stop: Numbers
    """Behind the last one."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def tokens(self) -> Numbers:
        """Of each piece, [M]."""
        return self.stop - self.start

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """Some of them, in the same order."""
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class TransferPlan:
    """What is moved so that every process of `target` has its rows with the columns of all legs."""

    lengths: Numbers
    """Tokens of each row, [N]."""
    legs: tuple[Leg, ...]
    target: Spread
    hosts: Numbers
    """[P], the host of each process."""
    pieces: Pieces
    """By leg, then by row and first token."""

    @cached_property
    def bytes(self) -> Numbers:
        """Of each piece, [M]."""
        sizes = np.array([leg.size_bytes for leg in self.legs], np.int64)
        return self.pieces.tokens * sizes[self.pieces.leg]

    def of(self, process: int, hop: int) -> Pieces:
        """What one process sends, receives and keeps in a hop."""
        pieces = self.pieces
        return pieces.where((pieces.hop == hop) & ((pieces.source == process) | (pieces.destination == process)))

    @cached_property
    def sizes(self) -> list[Numbers]:
        """Of the messages of each hop, [P, P]: bytes from each process to each other one."""
        pieces, count = self.pieces, len(self.hosts)
        moved = pieces.source != pieces.destination
        return [
            tabled(pieces.source[chosen], pieces.destination[chosen], self.bytes[chosen], count)
            for chosen in (moved & (pieces.hop == hop) for hop in self.hops)
        ]

    @property
    def hops(self) -> range:
        """All that have anything to move, and those before them."""
        return range(int(self.pieces.hop.max(initial=-1)) + 1)


def tabled(source: Numbers, destination: Numbers, size: Numbers, count: int) -> Numbers:
    """Sizes of ways added up by who sends and who receives, [count, count]."""
    table = np.bincount(source * count + destination, weights=size, minlength=count * count)
    return table.reshape(count, count).astype(np.int64)


KEPT_PLANS = 4
_kept: OrderedDict[bytes, TransferPlan] = OrderedDict()


def plan(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    """Plan the way of rows to `target`. The last plans are kept: the same transfer is not planned twice.

    Args:
        lengths: tokens of each row, [N].
        legs: the columns that are wanted, and where they lie.
        hosts: the host of each process, [P].
    """
    asked = signature(lengths, legs, target, hosts)
    found = _kept.pop(asked, None) or _planned(lengths, legs, target, hosts)
    _kept[asked] = found
    if len(_kept) > KEPT_PLANS:
        _kept.popitem(last=False)
    return found


def _planned(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    made = [_pieces(number, lengths, leg, target, hosts) for number, leg in enumerate(legs)]
    joined = (np.concatenate([getattr(pieces, field.name) for pieces in made]) for field in fields(Pieces))
    return TransferPlan(lengths, tuple(legs), target, hosts, Pieces(*joined))


def _pieces(number: int, lengths: Numbers, leg: Leg, target: Spread, hosts: Numbers) -> Pieces:
    """The pieces of one leg."""
    segments = segments_of(lengths, leg, target)
    ways = routes(segments.demand, hosts)
    columns = (segments.row[ways.at], segments.start[ways.at], segments.stop[ways.at])
    joined = Pieces(np.full(len(ways.at), number), ways.hop, ways.source, ways.destination, *columns)
    order = np.lexsort((joined.start, joined.row))
    return Pieces(*(getattr(joined, field.name)[order] for field in fields(Pieces)))
