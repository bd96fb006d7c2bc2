"""How a learner's weights get to the samplers: every rank offers its boxes, every sampler takes them tensor by tensor.

    rank: its boxes ─▶ buckets ─▶ objects in the store of its host ─┐
    driver: references alone                                        ├─▶ sampler: one tensor at a time
    rank: …                                                        ─┘

Nobody but a sampler ever holds whole weights, and of one that is split over processes each takes its part alone. What
several ranks hold alike, one of them offers, all of them equally much. A host's store fetches an object once for all
samplers there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import ray
import torch
from torch import Tensor

from earl.dispatch.carry import Hand
from earl.dispatch.copies import Copies, Weight
from earl.dispatch.messages import Bytes
from earl.dispatch.tensors import Tensors
from earl.dispatch.weights import Move, WeightPlan, plan_weights
from earl.engine.keeping import Held
from earl.parallel.layout import Box, Layout, whole
from earl.placement.cluster.budget import aside

BUCKET_BYTES = 1 << 28
"""What a rank packs at a time."""
Reference = Any
"""`ray.ObjectRef`; Ray is not seen by the type checker."""


@dataclass(frozen=True, slots=True)
class Described:
    """What has to be known of weights to find a tensor in what the ranks offer."""

    weights: tuple[Weight, ...]
    kinds: tuple[str, ...]
    """The type of each one's numbers, as torch calls it."""
    layout: Layout
    """Of the ranks."""
    bucket_bytes: int = BUCKET_BYTES

    @property
    def plan(self) -> WeightPlan:
        """To one process that needs all of them, behind the ranks."""
        return _plan(self.weights, self.layout, self.bucket_bytes)


def described(held: Held, bucket_bytes: int = BUCKET_BYTES) -> Described:
    """What every rank says alike."""
    parts = held.parts.items()
    weights = (Weight(name, part.shape, part.numbers.itemsize, held.axes[name]) for name, part in parts)
    kinds = (str(part.numbers.dtype).removeprefix("torch.") for _, part in parts)
    return Described(tuple(weights), tuple(kinds), held.layout, bucket_bytes)


def offer(held: Held, rank: int, bucket_bytes: int = BUCKET_BYTES) -> list[Reference | None]:
    """Put what a rank is to give into Ray's object store: a reference by bucket, None where it gives nothing."""
    plan = described(held, bucket_bytes).plan
    shelf = Tensors({name: part.numbers for name, part in held.parts.items()})
    hand, reader = Hand(plan, rank, shelf, Tensors()), held.layout.size
    return [_put(hand.pack(moves)[reader]) if moves else None for moves in plan.of(rank)]


def _put(message: Bytes) -> Reference:
    with aside():
        return ray.put(message)


@dataclass(frozen=True, slots=True)
class Offered:
    """Weights that lie in Ray's object stores. The objects are there as long as one of these is."""

    described: Described
    references: tuple[tuple[Reference | None, ...], ...]
    """By rank and bucket."""

    def taken(self) -> "Fetched":
        """The weights, fetched tensor by tensor as they are asked for."""
        return Fetched(self)

    def fetch(self, wanted: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Messages by rank and bucket."""
        messages: list[Bytes] = ray.get([self.references[rank][bucket] for rank, bucket in wanted])
        return messages


class Source(Protocol):
    """Where messages of a plan are had."""

    @property
    def described(self) -> Described:
        """What they are."""

    def fetch(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Messages by rank and bucket."""


class Fetched(Mapping[str, Tensor]):
    """Whole tensors, each made when it is asked for and kept by nobody but who asked; tied ones once.

    Asked for in order, as samplers do, no more than one bucket of messages is in use at a time, or as many as a tensor
    lies in.
    """

    def __init__(self, offered: Source) -> None:
        self._offered = offered
        described = offered.described
        self._plan = described.plan
        self._numbers = {weight.name: number for number, weight in enumerate(described.weights)}
        self._pieces: list[list[tuple[int, Move, int]]] = [[] for _ in described.weights]
        for bucket, moves in enumerate(self._plan.of(described.layout.size)):
            begins = [0] * described.layout.size
            for move in moves:
                self._pieces[move.weight].append((bucket, move, begins[move.source]))
                begins[move.source] += move.size
        self._messages: dict[tuple[int, int], Bytes] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor. Raises what Ray raises when a rank's host is gone."""
        return self.part(name, whole(self._plan.weights[self._numbers[name]].shape))

    def part(self, name: str, box: Box) -> Tensor:
        """What lies in a box of a tensor: of pieces that reach into it, only this is copied."""
        number = self._numbers[name]
        made = torch.empty(box.shape, dtype=getattr(torch, self._offered.described.kinds[number]))
        reaching = [(piece, common) for piece in self._pieces[number] if (common := piece[1].box.common(box))]
        self._fetch({(move.source, bucket) for (bucket, move, _), _ in reaching})
        for (bucket, move, begin), common in reaching:
            message = self._messages[move.source, bucket][begin : begin + move.size]
            numbers = message.reshape(*move.box.shape, -1)[common.inside(move.box)].copy()  # of the store, only views
            made[common.inside(box)] = torch.from_numpy(numbers).view(made.dtype).view(common.shape)
        return made

    def _fetch(self, wanted: set[tuple[int, int]]) -> None:
        """Let go of messages that are not wanted, and get those that are: views of the store, not copies."""
        self._messages = {key: message for key, message in self._messages.items() if key in wanted}
        missing = [*wanted - self._messages.keys()]
        self._messages |= zip(missing, self._offered.fetch(missing), strict=True)


@lru_cache(maxsize=4)
def _plan(weights: tuple[Weight, ...], layout: Layout, bucket_bytes: int) -> WeightPlan:
    ranks, reader = tuple(range(layout.size)), layout.size
    source, target = Copies(layout, (ranks,)), Copies(Layout(), ((reader,),))
    return plan_weights(weights, source, target, [0] * (layout.size + 1), bucket_bytes)
