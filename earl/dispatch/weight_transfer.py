"""A plan for weights carried out in one process, over any transport, bucket by bucket.

    pack what goes ─▶ copy what is kept ─▶ close what is done ─▶ open what comes ─▶ exchange ─▶ unpack       each bucket

Where the tensors lie is the business of two shelves (Tensors): bytes go in and come out.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, Transport
from earl.dispatch.weights import Copies, Move, WeightPlan, turnover
from earl.parallel.layout import Slices


class Shelf(Protocol):
    """The boxes of one side on one process, by name."""

    def open(self, name: str, shape: tuple[int, ...]) -> None:
        """Make room for a box."""

    def close(self, name: str) -> None:
        """Nothing is read of a tensor any more."""

    def read(self, name: str, index: Slices, into: Bytes) -> None:
        """Copy a part of a box, which need not lie together."""

    def write(self, name: str, index: Slices, given: Bytes) -> None:
        """Fill a part of a box."""


class Tensors:
    """Boxes that are there already, or are made when the first bytes of them come.

    Args:
        kinds: the type of the numbers of tensors that are still to be made, by name.
        device: where these are made.
        hosted: whether what is done with goes to host memory.

    Attributes:
        tensors: by name, those in the device's memory.
        away: by name, those that went to host memory.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        kinds: Mapping[str, torch.dtype] | None = None,
        device: torch.device | str = "cpu",
        hosted: bool = False,
    ) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in (tensors or {}).items()}
        self.away: dict[str, Tensor] = {}
        self._kinds, self._device, self._hosted = kinds or {}, device, hosted

    def open(self, name: str, shape: tuple[int, ...]) -> None:
        """Make a tensor, unless it is there."""
        if name not in self.tensors:
            self.tensors[name] = torch.empty(shape, dtype=self._kinds[name], device=self._device)
        assert self.tensors[name].shape == shape, (
            f"{name!r} has the shape {tuple(self.tensors[name].shape)}, not {shape}"
        )

    def close(self, name: str) -> None:
        """Move a tensor to host memory, if that was asked for; on a CPU it is a copy."""
        if self._hosted:
            tensor = self.tensors.pop(name)
            self.away[name] = tensor.to("cpu", copy=True)

    def read(self, name: str, index: Slices, into: Bytes) -> None:
        """Copy a part of a tensor; only this part, whether it lies together or not."""
        part = self.tensors[name][index]
        _numbers(into, part).copy_(part)

    def write(self, name: str, index: Slices, given: Bytes) -> None:
        """Fill a part of a tensor."""
        part = self.tensors[name][index]
        part.copy_(_numbers(given, part))


def _numbers(raw: Bytes, like: Tensor) -> Tensor:
    """Bytes as numbers, in place."""
    own = raw if raw.flags.writeable else raw.copy()  # what lies in shared memory, torch does not take
    return torch.from_numpy(own).view(like.dtype).view(like.shape)


def carry(plan: WeightPlan, process: int, held: Shelf, room: Shelf, transport: Transport) -> None:
    """Give what the plan takes from a process, and fill its boxes of the target. Every process calls it.

    Beside the boxes it never needs more than one bucket of memory (see peak.py). None returns before all have theirs.

    Raises:
        Lost, Late: when another process fails; `room` may then be filled in part, and is to be filled again.
    """
    moves = plan.of(process)
    changes = turnover(plan, process, moves)
    hand = Hand(plan, process, held, room)
    for bucket in range(len(changes.opens)):
        own = moves[bucket] if moves else []
        outgoing = hand.pack([move for move in own if move.source == process != move.destination])
        kept = [move for move in own if move.source == move.destination]
        early = {move.weight for move in kept}
        hand.open([number for number in changes.opens[bucket] if number in early])
        hand.keep(kept)
        for number in changes.closes[bucket]:
            held.close(plan.weights[number].name)
        hand.open([number for number in changes.opens[bucket] if number not in early])
        if moves:
            hand.receive([move for move in own if move.source != process], outgoing, transport, plan.sizes(bucket))
    transport.most(0)


class Hand:
    """What one process does with its moves."""

    def __init__(self, plan: WeightPlan, process: int, held: Shelf, room: Shelf) -> None:
        self._plan, self._process, self._held, self._room = plan, process, held, room

    def open(self, numbers: Sequence[int]) -> None:
        """Make room for boxes."""
        for number in numbers:
            weight = self._plan.weights[number]
            box = self._plan.target.box(weight.shape, weight.wanted, self._process)
            assert box is not None, "only a process of the target opens"
            self._room.open(weight.name, box.shape)

    def pack(self, moves: Sequence[Move]) -> dict[int, Bytes]:
        """One message for each destination."""
        return {
            other: self._packed([move for move in moves if move.destination == other])
            for other in sorted({move.destination for move in moves})
        }

    def keep(self, moves: Sequence[Move]) -> None:
        """Copy what stays on this process."""
        for move in moves:
            self._write(move, self._packed([move]))

    def receive(self, moves: Sequence[Move], outgoing: dict[int, Bytes], transport: Transport, sizes: Numbers) -> None:
        """Exchange, and put every piece into its place."""
        came = transport.exchange(outgoing, sizes)
        outgoing.clear()
        for other, message in came.items():
            begin = 0
            for move in moves:
                if move.source == other:
                    self._write(move, message[begin : begin + move.size])
                    begin += move.size

    def _packed(self, moves: Sequence[Move]) -> Bytes:
        message = np.empty(sum(move.size for move in moves), np.uint8)
        begin = 0
        for move in moves:
            name, index = self._place(move, self._plan.target if move.hop else self._plan.source, not move.hop)
            shelf = self._room if move.hop else self._held
            shelf.read(name, index, message[begin : begin + move.size])
            begin += move.size
        return message

    def _write(self, move: Move, given: Bytes) -> None:
        self._room.write(*self._place(move, self._plan.target, False), given)

    def _place(self, move: Move, side: Copies, given: bool) -> tuple[str, Slices]:
        """Of a piece in this process's box."""
        weight = self._plan.weights[move.weight]
        box = side.box(weight.shape, weight.given if given else weight.wanted, self._process)
        assert box is not None, "who sends or receives a piece has a box that holds it"
        return weight.name, move.box.inside(box)
