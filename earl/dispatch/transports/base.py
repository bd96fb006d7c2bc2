"""What all transports promise."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Leg, Pieces
from earl.dispatch.rows import Axis, Numbers, Shard, ranges
from earl.errors import EarlError

# Pieces as bytes: what one process sends to another one in one message.
#
# leg by leg, column by column, piece by piece ─▶ numbers end to end, without names: both sides know the plan

Bytes = NDArray[np.uint8]
CHECKSUM_BYTES = 4
SHORT = 64
"""Tokens of a piece, on average, below which it is cheaper to gather them by index than to copy piece by piece."""


def size_bytes(pieces: Pieces, legs: Sequence[Leg]) -> int:
    """Of the message with these pieces."""
    return sum(int(pieces.tokens[pieces.leg == number].sum()) * leg.size_bytes for number, leg in enumerate(legs))


def pack(pieces: Pieces, legs: Sequence[Leg], source: Sequence[Shard]) -> Bytes:
    """The message with these pieces.

    Args:
        source: what is held of each leg.
    """
    message = np.empty(size_bytes(pieces, legs), np.uint8)
    begin = 0
    for number, leg in enumerate(legs):
        own = pieces.where(pieces.leg == number)
        if not len(own):
            continue
        at, to, end = source[number].begins(own.row, own.start), _begins(own.tokens), int(own.tokens.sum())
        for column in leg.columns:
            size = end * column.size_bytes
            into = message[begin : begin + size].reshape(end, column.size_bytes)
            _move(_cells(source[number].columns[column.name]), at, into, to, own.tokens)
            begin += size
    return message


def unpack(
    message: Bytes,
    pieces: Pieces,
    legs: Sequence[Leg],
    target: Mapping[Axis, Shard],
    chosen: NDArray[np.bool_] | None = None,
) -> None:
    """Put what `pack` made into the columns of the target.

    Args:
        pieces: all that the message consists of.
        chosen: which of them are wanted, None: all of them.
    """
    begin = 0
    for number, leg in enumerate(legs):
        here = pieces.leg == number
        tokens = pieces.tokens[here]
        end = int(tokens.sum())
        wanted = slice(None) if chosen is None else chosen[here]
        shard, at = target[leg.axis], _begins(tokens)[wanted]
        to = shard.begins(pieces.row[here][wanted], pieces.start[here][wanted])
        for column in leg.columns:
            size = end * column.size_bytes
            cells = message[begin : begin + size].reshape(end, column.size_bytes)
            _move(cells, at, _cells(shard.columns[column.name]), to, tokens[wanted])
            begin += size


def seal(message: Bytes) -> Bytes:
    """A message with its checksum behind it."""
    return np.concatenate([message, np.array([zlib.crc32(message.data)], np.uint32).view(np.uint8)])


def intact(message: Bytes) -> bool:
    """Whether a sealed message is what was sent."""
    said = message[-CHECKSUM_BYTES:].copy().view(np.uint32)[0]
    return zlib.crc32(message[:-CHECKSUM_BYTES].data) == int(said)


def _begins(tokens: Numbers) -> Numbers:
    """Where each of several pieces begins when they lie end to end."""
    return np.cumsum(tokens) - tokens


def _cells(column: NDArray[np.generic]) -> Bytes:
    """The bytes of a column, a line for each token: [T, bytes of a token]."""
    line = column.itemsize * (column.shape[1] if column.ndim > 1 else 1)
    return column.reshape(-1).view(np.uint8).reshape(len(column), line)


def _move(cells: Bytes, at: Numbers, into: Bytes, to: Numbers, tokens: Numbers) -> None:
    """Copy runs of lines: from `at` of `cells` to `to` of `into`."""
    if tokens.sum() < SHORT * len(tokens):
        into[ranges(to, tokens)] = cells[ranges(at, tokens)]
        return
    for begin, place, count in zip(at.tolist(), to.tolist(), tokens.tolist(), strict=True):
        into[place : place + count] = cells[begin : begin + count]


class Transport(Protocol):
    """How messages get from process to process. All processes call each function, in the same order."""

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        """Give every process its message and take one from each of the others.

        Args:
            outgoing: by destination; each may be made when it is first asked for.
            sizes: [P, P], bytes from each process to each other one, the same on all; 0 where there is no message.

        Raises:
            Lost, Late: with the name of the process, and where it is.
        """

    def most(self, number: int) -> int:
        """The largest number, at least 0, that any process gives: none goes on before all have come here.

        Raises:
            Lost, Late: as above.
        """


class Corrupted(EarlError):
    """A message is not what was sent."""


class ProcessLost(EarlError):
    """A process has ended, or cannot be reached."""


class Late(EarlError):
    """A process is there, and did not do its part in time."""
