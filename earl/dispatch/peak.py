"""How much memory a transfer of weights takes, stated before it is carried out.

What counts: a process's boxes of both sides, and beside them the buffers of the bucket that is on its way: what is
packed to be sent, what has come and is not unpacked yet, and a piece that is kept while it is copied. What a transport
takes below the messages that it is given does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.copies import Copies, Weight
from earl.dispatch.spread import Numbers
from earl.dispatch.weights import Move, WeightPlan


@dataclass(frozen=True, slots=True)
class Turnover:
    """When a process needs room for the tensors that come, and no longer needs those that it had, by bucket."""

    opens: tuple[tuple[int, ...], ...]
    """Tensors of which the first piece comes in this bucket."""
    closes: tuple[tuple[int, ...], ...]
    """Tensors of which the last piece goes in this bucket; those that nothing is taken of, in the first one."""


def turnover(plan: WeightPlan, process: int, moves: Sequence[Sequence[Move]]) -> Turnover:
    """Of one process; `moves` are its own, by bucket."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for bucket, own in enumerate(moves):
        for move in own:
            if move.destination == process:
                first.setdefault(move.weight, bucket)
            if move.source == process and not move.hop:
                last[move.weight] = bucket
    opens: list[list[int]] = [[] for _ in range(max(1, len(moves)))]
    closes: list[list[int]] = [[] for _ in range(max(1, len(moves)))]
    for number, weight in enumerate(plan.weights):
        if plan.target.box(weight.shape, weight.wanted, process) is not None:
            opens[first.get(number, 0)].append(number)
        if plan.source.box(weight.shape, weight.given, process) is not None:
            closes[last.get(number, 0)].append(number)
    return Turnover(tuple(map(tuple, opens)), tuple(map(tuple, closes)))


def extra_bytes(plan: WeightPlan) -> Numbers:
    """The most that each process needs beside its boxes, [P]: never more than a bucket."""
    count = len(plan.hosts)
    load = np.zeros((plan.num_buckets, count), np.int64)
    ways, size = plan.ways, plan.size
    np.add.at(load, (plan.bucket, ways.source), size)
    other = ways.source != ways.destination
    np.add.at(load, (plan.bucket[other], ways.destination[other]), size[other])
    most: Numbers = load.max(axis=0, initial=0)
    return most


def held_bytes(weights: Sequence[Weight], side: Copies, given: bool, process: int) -> list[int]:
    """What a process has of each tensor on one side."""
    boxes = [side.box(weight.shape, weight.given if given else weight.wanted, process) for weight in weights]
    return [box.numbers * weight.number_bytes if box else 0 for box, weight in zip(boxes, weights, strict=True)]


def peak_bytes(plan: WeightPlan, process: int, swapped: bool = False) -> int:
    """The most that a process has in its device's memory at any time: boxes of both sides, and buffers.

    Args:
        swapped: whether what it had goes to host memory, each tensor as soon as its last piece was taken
            (allgather-swap); else it stays. Buffers are in the device's memory in both cases.
    """
    moves = plan.of(process)
    having = held_bytes(plan.weights, plan.source, True, process)
    room = held_bytes(plan.weights, plan.target, False, process)
    if not swapped:
        return sum(having) + sum(room) + int(extra_bytes(plan)[process])
    changes = turnover(plan, process, moves)
    held = peak = sum(having)
    for opens, closes, own in zip(changes.opens, changes.closes, moves or [[]], strict=True):
        kept = {move.weight for move in own if move.source == move.destination}
        out = sum(move.size for move in own if move.source == process and move.destination != process)
        copied = max((move.size for move in own if move.source == move.destination), default=0)
        coming = sum(move.size for move in own if move.source != process)
        early = sum(room[number] for number in opens if number in kept)
        peak = max(peak, held + early + out + copied)
        held += sum(room[number] for number in opens) - sum(having[number] for number in closes)
        peak = max(peak, held + out + coming)
    return peak
