"""The `Transport` protocol, messages as bytes, and `execute`, which carries out a plan over any transport.

For each hop: pack what each destination lacks, exchange, unpack. Hop 0 goes across hosts, hop 1 inside them.
"""

import zlib
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.rows import Columns, Numbers, Shard, empty_shard, ranges, token_bytes
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


def unpack(message: Bytes, pieces: Pieces, columns: Columns, target: Shard) -> None:
    """Copy a message of `pieces` into the columns of the target."""
    tokens = pieces.tokens
    for name, own in _split(message, columns).items():
        _move(own, _begins(tokens), target.columns[name], target.begins(pieces.row, pieces.start), tokens)


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
    """Moves messages between processes."""

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        """Send every other process its message and receive one from each; all processes call this.

        Args:
            outgoing: by destination.
            sizes: [P, P], bytes from each process to each other one, the same on all; 0 where there is no message.

        Raises:
            PeerLost: naming the process that did not answer, and its host.
        """

    def close(self) -> None:
        """Leave the others, also in the middle of an exchange: those that wait for this process are told."""


class Corrupted(EarlError):
    """A message does not match its checksum."""


class PeerLost(EarlError):
    """A process has ended, cannot be reached, or did not do its part in time."""


def execute(plan: TransferPlan, process: int, held: Shard, transport: Transport, checksums: bool = False) -> Shard:
    """Send what the plan takes from this process; return its rows of the target.

    Args:
        held: the rows of the source that the process holds.
        checksums: verify every message.

    Raises:
        Corrupted: when a message arrives damaged. Other processes may not notice.
        PeerLost: when another process fails.
    """
    target = empty_shard(plan.target, process, plan.lengths, plan.columns)
    copy_kept_rows(plan, process, held, target)
    for hop in plan.hops:
        pieces, sizes = plan.of(process, hop), plan.sizes[hop]
        going = _by_process(pieces, pieces.destination, process)
        outgoing = {other: pack(own, plan.columns, target if hop else held) for other, own in going.items()}
        if checksums:
            sealed = {other: seal(message) for other, message in outgoing.items()}
            came = _without_checksums(plan, process, transport.exchange(sealed, sizes + CHECKSUM_BYTES * (sizes > 0)))
        else:
            came = transport.exchange(outgoing, sizes)
        for other, own in _by_process(pieces, pieces.source, process).items():
            unpack(came[other], own, plan.columns, target)
    return target


def copy_kept_rows(plan: TransferPlan, process: int, held: Shard, target: Shard) -> None:
    """Copy the rows that stay on this process into its target."""
    pieces = plan.pieces
    kept = pieces.where((pieces.source == process) & (pieces.destination == process))
    unpack(pack(kept, plan.columns, held), kept, plan.columns, target)


def _by_process(pieces: Pieces, others: NDArray[np.int64], process: int) -> dict[int, Pieces]:
    elsewhere = np.unique(others[others != process]).tolist()
    return {other: pieces.where(others == other) for other in elsewhere}


def _without_checksums(plan: TransferPlan, process: int, came: Mapping[int, Bytes]) -> Mapping[int, Bytes]:
    """Messages without their checksums. Raises Corrupted when one differs."""
    for source, message in came.items():
        if not intact(message):
            raise Corrupted(
                f"what process {source} (host {plan.hosts[source]}) sent to process {process} (host "
                f"{plan.hosts[process]}) arrived damaged: its checksum differs; look at the network and the memory of "
                "both hosts"
            )
    return {source: message[:-CHECKSUM_BYTES] for source, message in came.items()}
