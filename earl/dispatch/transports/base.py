"""The `Transport` protocol, its errors, and messages as bytes."""

import zlib
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Pieces
from earl.dispatch.rows import Columns, Numbers, Shard, ranges, token_bytes
from earl.errors import EarlError

# A message holds numbers end to end, column by column, piece by piece; no names, since both sides know the plan.

Bytes = NDArray[np.uint8]
CHECKSUM_BYTES = 4
SHORT = 64
"""Mean tokens per piece below which gathering by index is cheaper than copying piece by piece."""


def pack(pieces: Pieces, columns: Columns, source: Shard) -> Bytes:
    """The message with these pieces."""
    tokens = pieces.tokens
    message = np.empty(int(tokens.sum()) * token_bytes(columns), np.uint8)
    for name, into in _split(message, columns).items():
        _move(source.columns[name], source.begins(pieces.row, pieces.start), into, _begins(tokens), tokens)
    return message


def unpack(
    message: Bytes, pieces: Pieces, columns: Columns, target: Shard, chosen: NDArray[np.bool_] | slice = slice(None)
) -> None:
    """Copy a message of `pieces` into the columns of the target. chosen: the wanted pieces, by default all."""
    begins, wanted = _begins(pieces.tokens)[chosen], pieces.where(chosen)
    for name, own in _split(message, columns).items():
        _move(own, begins, target.columns[name], target.begins(wanted.row, wanted.start), wanted.tokens)


def _split(message: Bytes, columns: Columns) -> dict[str, NDArray[np.generic]]:
    """The columns of a message, by name."""
    count, begin, found = len(message) // token_bytes(columns), 0, {}
    for name, kind in columns.items():
        found[name] = message[begin : begin + count * kind.itemsize].view(kind)
        begin += count * kind.itemsize
    return found


def seal(message: Bytes) -> Bytes:
    return np.concatenate([message, np.array([zlib.crc32(message.data)], np.uint32).view(np.uint8)])


def intact(message: Bytes) -> bool:
    said = message[-CHECKSUM_BYTES:].copy().view(np.uint32)[0]
    return zlib.crc32(message[:-CHECKSUM_BYTES].data) == int(said)


def _begins(tokens: Numbers) -> Numbers:
    return np.cumsum(tokens) - tokens


def _move(numbers: NDArray[np.generic], at: Numbers, into: NDArray[np.generic], to: Numbers, tokens: Numbers) -> None:
    if tokens.sum() < SHORT * len(tokens):
        into[ranges(to, tokens)] = numbers[ranges(at, tokens)]
        return
    for begin, place, count in zip(at.tolist(), to.tolist(), tokens.tolist(), strict=True):
        into[place : place + count] = numbers[begin : begin + count]


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


TRIALS = 3
"""Transfers by each transport before one is chosen: the first makes connections and touches new memory."""
KEPT = 31
"""Measurements kept per transport."""
LOWER = 0.95
"""Another transport is chosen when its median is below this fraction of the chosen one's: fewer changes by noise."""
AGAIN = 25
"""Every this many picks another transport is tried again: transfers grow, and links change."""


class Pace:
    def __init__(self, *ways: str) -> None:
        self._took: dict[str, deque[float]] = {way: deque(maxlen=KEPT) for way in ways}
        self._picks = 0
        self.chosen = ""  # until every transport was tried

    def pick(self) -> str:
        """The transport to use now."""
        self._picks += 1
        if self.chosen and self._picks % AGAIN:
            return self.chosen
        others = [way for way in self._took if way != self.chosen]
        return min(others, key=lambda way: len(self._took[way]))

    def took(self, way: str, seconds: float) -> None:
        self._took[way].append(seconds)
        if all(len(own) >= TRIALS for own in self._took.values()):
            medians = self.medians
            least = min(medians, key=lambda way: medians[way])
            if not self.chosen or medians[least] < LOWER * medians[self.chosen]:
                self.chosen = least

    @property
    def medians(self) -> dict[str, float]:
        """Seconds of each transport that was used."""
        return {way: median(own) for way, own in self._took.items() if own}
