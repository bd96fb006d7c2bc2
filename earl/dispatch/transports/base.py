"""The `Transport` protocol, its errors, and messages as bytes."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Leg, Pieces
from earl.dispatch.rows import Axis, Numbers, Shard, ranges
from earl.errors import EarlError

# A message holds numbers end to end, leg by leg, column by column, piece by piece; no names, since both sides know the
# plan.

Bytes = NDArray[np.uint8]
CHECKSUM_BYTES = 4
SHORT = 64
"""Mean tokens per piece below which gathering by index is cheaper than copying piece by piece."""


def pack(pieces: Pieces, legs: Sequence[Leg], source: Sequence[Shard]) -> Bytes:
    """The message with these pieces. source: the shard held for each leg."""
    size_bytes = np.array([leg.size_bytes for leg in legs], np.int64)
    message = np.empty(int((pieces.tokens * size_bytes[pieces.leg]).sum()), np.uint8)
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
    """Copy a message of `pieces` into the columns of the target. chosen: masks the wanted pieces; None means all."""
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
    return np.concatenate([message, np.array([zlib.crc32(message.data)], np.uint32).view(np.uint8)])


def intact(message: Bytes) -> bool:
    said = message[-CHECKSUM_BYTES:].copy().view(np.uint32)[0]
    return zlib.crc32(message[:-CHECKSUM_BYTES].data) == int(said)


def _begins(tokens: Numbers) -> Numbers:
    return np.cumsum(tokens) - tokens


def _cells(column: NDArray[np.generic]) -> Bytes:
    """A column as bytes, [T, bytes of a token]."""
    line = column.itemsize * (column.shape[1] if column.ndim > 1 else 1)
    return column.reshape(-1).view(np.uint8).reshape(len(column), line)


def _move(cells: Bytes, at: Numbers, into: Bytes, to: Numbers, tokens: Numbers) -> None:
    if tokens.sum() < SHORT * len(tokens):
        into[ranges(to, tokens)] = cells[ranges(at, tokens)]
        return
    for begin, place, count in zip(at.tolist(), to.tolist(), tokens.tolist(), strict=True):
        into[place : place + count] = cells[begin : begin + count]


class Transport(Protocol):
    """Moves messages between processes. All processes call each function, in the same order."""

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        """Send every other process its message and receive one from each.

        Args:
            outgoing: by destination.
            sizes: [P, P], bytes from each process to each other one, the same on all; 0 where there is no message.

        Raises:
            ProcessLost, Late: naming the process and its host.
        """

    def most(self, number: int) -> int:
        """The largest number, at least 0, over all processes; also a barrier. Raises as `exchange` does."""


class Corrupted(EarlError):
    """A message does not match its checksum."""


class ProcessLost(EarlError):
    """A process has ended, or cannot be reached."""


class Late(EarlError):
    """A process is alive but did not do its part in time."""
