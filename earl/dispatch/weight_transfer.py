"""Carries out a weight plan in one process, over any transport: bucket by bucket pack, copy what is kept, exchange."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, Transport
from earl.dispatch.weights import Move, WeightPlan

Tensors = Mapping[str, Tensor]
"""A process's boxes of a side, by name."""


def carry(plan: WeightPlan, process: int, held: Tensors, room: Tensors, transport: Transport) -> None:
    """Send what the plan takes from this process, and fill its boxes of the target, `room`. Every process calls it.
    Beside the boxes it needs at most one bucket of memory. No process returns before all have their boxes. Raises
    ProcessLost or Late when another process fails; `room` may then be partly filled, and has to be filled again."""
    for bucket, moves in enumerate(plan.of(process)):
        outgoing = pack(plan, process, moves, held, room)
        for move in moves:
            if move.source == move.destination:
                _part(plan, process, move, room, False).copy_(_part(plan, process, move, held, True))
        _receive(plan, process, moves, room, transport, outgoing, plan.sizes(bucket))
    transport.most(0)


def _receive(
    plan: WeightPlan,
    process: int,
    moves: Sequence[Move],
    room: Tensors,
    transport: Transport,
    outgoing: dict[int, Bytes],
    sizes: Numbers,
) -> None:
    came = transport.exchange(outgoing, sizes)
    outgoing.clear()
    for other, message in came.items():
        begin = 0
        for move in moves:
            if move.source == other:
                part = _part(plan, process, move, room, False)
                part.copy_(_numbers(message[begin : begin + move.size], part))
                begin += move.size


def pack(
    plan: WeightPlan, process: int, moves: Sequence[Move], held: Tensors, room: Tensors | None = None
) -> dict[int, Bytes]:
    """The messages of a bucket, by destination. room: for plans of two hops."""
    messages = {}
    for other in sorted({move.destination for move in moves} - {process}):
        own = [move for move in moves if move.destination == other]
        messages[other] = np.empty(sum(move.size for move in own), np.uint8)
        begin = 0
        for move in own:
            part = _part(plan, process, move, room if move.hop and room else held, not move.hop)
            _numbers(messages[other][begin : begin + move.size], part).copy_(part)
            begin += move.size
    return messages


def _part(plan: WeightPlan, process: int, move: Move, tensors: Tensors, given: bool) -> Tensor:
    weight = plan.weights[move.weight]
    side, axis = (plan.source, weight.given) if given else (plan.target, weight.wanted)
    box = side.box(weight.shape, axis, process)
    assert box is not None, "who sends or receives a piece has a box that holds it"
    return tensors[weight.name].detach()[move.box.inside(box)]


def _numbers(raw: Bytes, like: Tensor) -> Tensor:
    own = raw if raw.flags.writeable else raw.copy()  # torch refuses read-only arrays, such as views of shared memory
    return torch.from_numpy(own).view(like.dtype).view(like.shape)
