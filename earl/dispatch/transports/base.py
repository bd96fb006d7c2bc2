"""The `Transport` protocol, messages as bytes, and `execute`, which carries out a plan over any transport.

For each hop: pack what each destination lacks, exchange, unpack. Hop 0 goes across hosts, hop 1 inside them. With
checksums, nothing is applied before all messages of a hop have arrived intact.
"""

import zlib
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.rows import Columns, Numbers, Shard, empty, ranges, token_bytes
from earl.errors import EarlError

# A message holds numbers end to end, column by column, piece by piece; no names, since both sides know the plan.

Bytes = NDArray[np.uint8]
CHECKSUM_BYTES = 4
TRIES = 3  # how often a damaged message is sent at most
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


def execute(plan: TransferPlan, process: int, held: Shard, transport: Transport, checksums: bool = False) -> Shard:
    """Send what the plan takes from this process; return its rows of the target.

    Args:
        held: the rows of the source that the process holds.
        checksums: verify every message; all processes repeat an exchange in which one was damaged.

    Raises:
        Corrupted: on every process, when messages arrive damaged `TRIES` times.
        ProcessLost, Late: on every process, when another one fails.
    """
    target = empty(plan.target, process, plan.lengths, plan.columns)
    keep(plan, process, held, target)
    for hop in plan.hops:
        pieces = plan.of(process, hop)
        going = _by(pieces, pieces.destination, process)
        outgoing = {other: pack(own, plan.columns, target if hop else held) for other, own in going.items()}
        if checksums:
            came = _checked(plan, process, transport, outgoing, plan.sizes[hop])
        else:
            came = transport.exchange(outgoing, plan.sizes[hop])
            transport.most(0)
        for other, own in _by(pieces, pieces.source, process).items():
            unpack(came[other], own, plan.columns, target)
    return target


def keep(plan: TransferPlan, process: int, held: Shard, target: Shard) -> None:
    """Copy the rows that stay on this process into its target."""
    pieces = plan.pieces
    kept = pieces.where((pieces.source == process) & (pieces.destination == process))
    unpack(pack(kept, plan.columns, held), kept, plan.columns, target)


def _by(pieces: Pieces, others: NDArray[np.int64], process: int) -> dict[int, Pieces]:
    elsewhere = np.unique(others[others != process]).tolist()
    return {other: pieces.where(others == other) for other in elsewhere}


def _checked(
    plan: TransferPlan, process: int, transport: Transport, outgoing: Mapping[int, Bytes], sizes: Numbers
) -> Mapping[int, Bytes]:
    """Exchange until no process has received damaged messages, at most `TRIES` times."""
    sealed = {other: seal(message) for other, message in outgoing.items()}
    for _ in range(TRIES):
        came = transport.exchange(sealed, sizes + CHECKSUM_BYTES * (sizes > 0))
        damaged = [source for source, message in came.items() if not intact(message)]
        # Encode sender and receiver as one number, so that all processes agree on one pair.
        worst = transport.most(1 + damaged[0] * len(plan.hosts) + process if damaged else 0)
        if not worst:
            return {source: message[:-CHECKSUM_BYTES] for source, message in came.items()}
    source, to = divmod(worst - 1, len(plan.hosts))
    raise Corrupted(
        f"what process {source} (host {plan.hosts[source]}) sent to process {to} (host {plan.hosts[to]}) arrived "
        f"damaged {TRIES} times: its checksum differs; look at the network and the memory of both hosts"
    )
