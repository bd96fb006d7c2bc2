"""Which process sends which tokens of which rows to which other one: pure, from the rows' lengths alone.

    first hop    from a process that has a range to one that needs it: once into every host that has none of it
    second hop   from the one that received it to the others on its host, where links are faster

What a process has itself it keeps. Every process makes the same plan from the same lengths, so that plans are not sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.segments import Leg, Segments, segments_of
from earl.dispatch.spread import Numbers, Spread

ACROSS, INSIDE = 0, 1
"""Hops."""


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

    @property
    def hops(self) -> range:
        """All that have anything to move, and those before them."""
        return range(int(self.pieces.hop.max(initial=-1)) + 1)


def plan(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    """Plan the way of rows to `target`.

    Args:
        lengths: tokens of each row, [N].
        legs: the columns that are wanted, and where they lie.
        hosts: the host of each process, [P].
    """
    made = [_pieces(number, lengths, leg, target, hosts) for number, leg in enumerate(legs)]
    joined = (np.concatenate([getattr(pieces, field.name) for pieces in made]) for field in fields(Pieces))
    return TransferPlan(lengths, tuple(legs), target, hosts, Pieces(*joined))


def _pieces(number: int, lengths: Numbers, leg: Leg, target: Spread, hosts: Numbers) -> Pieces:
    """The pieces of one leg."""
    segments = segments_of(lengths, leg, target)
    holders, readers = segments.holders, segments.readers
    turn = np.broadcast_to(np.arange(len(segments.row))[:, None], readers.shape)
    kept = (readers[:, :, None] == holders[:, None, :]).any(axis=2)
    lacking = ~kept & _first(readers)
    near = hosts[readers][:, :, None] == hosts[holders][:, None, :]  # [S, readers, holders]
    near_holder = np.take_along_axis(holders, _pick(near, turn), axis=1)
    far = lacking & ~near.any(axis=2)
    together = (hosts[readers][:, :, None] == hosts[readers][:, None, :]) & far[:, None, :]  # [S, readers, readers]
    receiver = np.take_along_axis(readers, _pick(together, turn), axis=1)
    first = far & (receiver == readers)
    sender = _senders(segments, first, hosts)

    def made(hop: int, chosen: NDArray[np.bool_], source: Numbers) -> Pieces:
        at, of = np.nonzero(chosen)
        columns = (segments.row[at], segments.start[at], segments.stop[at])
        return Pieces(np.full(len(at), number), np.full(len(at), hop), source[chosen], readers[at, of], *columns)

    parts = (
        made(ACROSS, kept & _first(readers), readers),
        made(ACROSS, lacking & ~far, near_holder),
        made(ACROSS, first, sender),
        made(INSIDE, far & ~first, receiver),
    )
    joined = Pieces(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Pieces)))
    order = np.lexsort((joined.start, joined.row))
    return Pieces(*(getattr(joined, field.name)[order] for field in fields(Pieces)))


def _first(readers: Numbers) -> NDArray[np.bool_]:
    """False where a process has stood before in its line: it may be several ranks, and needs a range once."""
    alike = readers[:, :, None] == readers[:, None, :]
    first: NDArray[np.bool_] = alike.argmax(axis=2) == np.arange(readers.shape[1])
    return first


def _pick(offered: NDArray[np.bool_], turn: Numbers) -> Numbers:
    """Of the True along the last axis [..., K] one in turn, [...]; 0 where there is none."""
    count = offered.cumsum(axis=-1)
    wanted = 1 + turn % np.maximum(count[..., -1], 1)
    picked: Numbers = (count == wanted[..., None]).argmax(axis=-1)
    return picked


def _senders(segments: Segments, chosen: NDArray[np.bool_], hosts: Numbers) -> Numbers:
    """Who sends to the chosen readers, [S, readers]: of the hosts that could, the one with the least to send so far."""
    holders = segments.holders
    senders = np.zeros(chosen.shape, np.int64)
    at, of = np.nonzero(chosen)
    host = hosts[holders]
    if (host == host[:, :1]).all():  # the usual case: a tp group lies on one host
        senders[at, of] = holders[at, at % holders.shape[1]]
        return senders
    load = np.zeros(int(hosts.max()) + 1)
    size = (segments.stop - segments.start)[at]
    for index in np.argsort(-size, kind="stable").tolist():
        row, reader = at[index], of[index]
        rank = int(load[host[row]].argmin())
        load[host[row, rank]] += size[index]
        senders[row, reader] = holders[row, rank]
    return senders
