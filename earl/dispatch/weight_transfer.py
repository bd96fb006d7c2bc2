"""Carries out a weight plan in one process, over any transport, bucket by bucket.

For each bucket: pack what goes, copy what is kept, close finished tensors, open new ones, exchange, unpack.
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
    """Named tensors of one side on one process, such as `Tensors`."""

    def open(self, name: str, shape: tuple[int, ...]) -> None:
        """Allocate a box."""

    def close(self, name: str) -> None:
        """No more reads of this tensor follow."""

    def read(self, name: str, index: Slices, into: Bytes) -> None:
        """Copy a slice of a box, which need not be contiguous."""

    def write(self, name: str, index: Slices, given: Bytes) -> None:
        """Fill a slice of a box."""


class Tensors:
    """Named tensors on one device; missing ones are allocated, with the dtype that `kinds` names, by `open`. With
    `hosted`, `close` moves a tensor from `tensors` to `away`, in host memory."""

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
        if name not in self.tensors:
            self.tensors[name] = torch.empty(shape, dtype=self._kinds[name], device=self._device)
        assert self.tensors[name].shape == shape, (
            f"{name!r} has the shape {tuple(self.tensors[name].shape)}, not {shape}"
        )

    def close(self, name: str) -> None:
        if self._hosted:
            tensor = self.tensors.pop(name)
            self.away[name] = tensor.to("cpu", copy=True)

    def read(self, name: str, index: Slices, into: Bytes) -> None:
        part = self.tensors[name][index]
        _numbers(into, part).copy_(part)

    def write(self, name: str, index: Slices, given: Bytes) -> None:
        part = self.tensors[name][index]
        part.copy_(_numbers(given, part))


def _numbers(raw: Bytes, like: Tensor) -> Tensor:
    own = raw if raw.flags.writeable else raw.copy()  # torch refuses read-only arrays, such as views of shared memory
    return torch.from_numpy(own).view(like.dtype).view(like.shape)


def carry(plan: WeightPlan, process: int, held: Shelf, room: Shelf, transport: Transport) -> None:
    """Send what the plan takes from this process, and fill its boxes of the target. Every process calls it. Beside the
    boxes it needs at most one bucket of memory. No process returns before all have their boxes. Raises ProcessLost or
    Late when another process fails; `room` may then be partly filled, and has to be filled again."""
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
    def __init__(self, plan: WeightPlan, process: int, held: Shelf, room: Shelf) -> None:
        self._plan, self._process, self._held, self._room = plan, process, held, room

    def open(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            weight = self._plan.weights[number]
            box = self._plan.target.box(weight.shape, weight.wanted, self._process)
            assert box is not None, "only a process of the target opens"
            self._room.open(weight.name, box.shape)

    def pack(self, moves: Sequence[Move]) -> dict[int, Bytes]:
        return {
            other: self._packed([move for move in moves if move.destination == other])
            for other in sorted({move.destination for move in moves})
        }

    def keep(self, moves: Sequence[Move]) -> None:
        for move in moves:
            self._write(move, self._packed([move]))

    def receive(self, moves: Sequence[Move], outgoing: dict[int, Bytes], transport: Transport, sizes: Numbers) -> None:
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
        weight = self._plan.weights[move.weight]
        box = side.box(weight.shape, weight.given if given else weight.wanted, self._process)
        assert box is not None, "who sends or receives a piece has a box that holds it"
        return weight.name, move.box.inside(box)
