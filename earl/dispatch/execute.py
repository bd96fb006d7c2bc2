"""A plan carried out in one process, over any transport: nothing is applied before all of it has come.

pack what each destination lacks ─▶ exchange ─▶ unpack         once across hosts, and once more inside them
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.columns import Axis
from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.segments import Leg
from earl.dispatch.shard import Shard, empty
from earl.errors import EarlError

Bytes = NDArray[np.uint8]
CHECKSUM_BYTES = 4


class Corrupted(EarlError):
    """A message is not what was sent."""


class Transport(Protocol):
    """How messages get from process to process. All processes call `exchange`, also those with nothing to send."""

    def exchange(self, outgoing: Mapping[int, Bytes], expected: Mapping[int, int]) -> Mapping[int, Bytes]:
        """Give every process its message and take one from each of the others.

        Args:
            outgoing: by destination.
            expected: the size of what comes, in bytes, by source.

        Raises:
            EarlError: when another process is lost or late, with its name.
        """


def execute(
    plan: TransferPlan, process: int, held: Sequence[Shard], transport: Transport, checksums: bool = False
) -> dict[Axis, Shard]:
    """Give what the plan takes from a process, and take what it gives.

    Args:
        held: what the process holds of each leg; a shard without rows where it holds nothing.
        checksums: whether every message is checked.

    Returns:
        the process's rows of the plan's target, with the columns of all legs, by axis.

    Raises:
        Corrupted: when a checksum differs.
    """
    target = _targets(plan, process)
    for hop in plan.hops:
        pieces = plan.of(process, hop)
        source = [target[leg.axis] for leg in plan.legs] if hop else held
        outgoing = {
            other: _pack(own, plan.legs, source, checksums) for other, own in _by(pieces, pieces.destination, process)
        }
        coming = dict(_by(pieces, pieces.source, process))
        sizes = {other: _size(own, plan.legs) + CHECKSUM_BYTES * checksums for other, own in coming.items()}
        kept = pieces.where((pieces.source == process) & (pieces.destination == process))
        _unpack(_pack(kept, plan.legs, source, False), kept, plan.legs, target)
        for other, message in transport.exchange(outgoing, sizes).items():
            payload = _checked(message, other, process) if checksums else message
            _unpack(payload, coming[other], plan.legs, target)
    return target


def _targets(plan: TransferPlan, process: int) -> dict[Axis, Shard]:
    axes: dict[Axis, list[Leg]] = {}
    for leg in plan.legs:
        axes.setdefault(leg.axis, []).append(leg)
    return {
        axis: empty(plan.target, process, plan.lengths, axis, [column for leg in legs for column in leg.columns])
        for axis, legs in axes.items()
    }


def _by(pieces: Pieces, others: NDArray[np.int64], process: int) -> list[tuple[int, Pieces]]:
    """The pieces that go to, or come from, each other process."""
    elsewhere = np.unique(others[others != process]).tolist()
    return [(other, pieces.where(others == other)) for other in elsewhere]


def _size(pieces: Pieces, legs: Sequence[Leg]) -> int:
    return sum(int(pieces.tokens[pieces.leg == number].sum()) * leg.size_bytes for number, leg in enumerate(legs))


def _pack(pieces: Pieces, legs: Sequence[Leg], source: Sequence[Shard], checksum: bool) -> Bytes:
    """Leg by leg, column by column, piece by piece."""
    parts = []
    for number, leg in enumerate(legs):
        own = pieces.where(pieces.leg == number)
        if len(own):
            where = source[number].positions(own.row, own.start, own.stop)
            parts += [_raw(source[number].columns[column.name][where]) for column in leg.columns]
    if checksum:
        parts.append(_raw(np.array([_crc(parts)], np.uint32)))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _unpack(message: Bytes, pieces: Pieces, legs: Sequence[Leg], target: Mapping[Axis, Shard]) -> None:
    """Put what `_pack` made into the columns of the target."""
    begin = 0
    for number, leg in enumerate(legs):
        own = pieces.where(pieces.leg == number)
        if not len(own):
            continue
        shard = target[leg.axis]
        where = shard.positions(own.row, own.start, own.stop)
        for column in leg.columns:
            end = begin + len(where) * column.size_bytes
            into = shard.columns[column.name]
            into[where] = message[begin:end].view(into.dtype).reshape(len(where), *into.shape[1:])
            begin = end


def _checked(message: Bytes, source: int, process: int) -> Bytes:
    payload, said = message[:-CHECKSUM_BYTES], message[-CHECKSUM_BYTES:].view(np.uint32)[0]
    if _crc([payload]) != said:
        raise Corrupted(f"what process {source} sent to process {process} arrived damaged: its checksum differs")
    return payload


def _crc(parts: Sequence[Bytes]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part.data, value)
    return value


def _raw(array: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
