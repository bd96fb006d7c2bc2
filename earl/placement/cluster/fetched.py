"""Weights as a sampler sees them while it loads: tensor by tensor, out of messages that come bucket by bucket."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from earl.dispatch.execute import TRIES
from earl.dispatch.messages import CHECKSUM_BYTES, Bytes, intact
from earl.dispatch.transports.base import Corrupted
from earl.dispatch.weights import Move
from earl.parallel.layout import Box, whole
from earl.placement.cluster.described import Described


class Source(Protocol):
    """Where messages of a plan are had."""

    @property
    def described(self) -> Described:
        """What they are."""

    @property
    def checksums(self) -> bool:
        """Whether each has its checksum behind it."""

    def fetch(self, bucket: int, ranks: Sequence[int]) -> Sequence[Bytes]:
        """What some ranks give in a bucket."""

    def again(self, bucket: int, rank: int) -> Bytes:
        """One of these, sent anew: it came damaged."""

    def leave(self) -> None:
        """Nothing more is fetched."""


class Fetched(Mapping[str, Tensor]):
    """Whole tensors, each made when it is asked for and kept by nobody but who asked; tied ones once.

    Messages of one bucket are in use at a time, also where a tensor lies in several. Asked for in order, as samplers
    do, each is fetched once.

    Attributes:
        damaged: what arrived damaged and was sent again.

    Raises:
        Corrupted: from every way to a tensor, when a message came damaged however often it was sent.
        RayError: likewise, when a rank or its host is gone.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        described = source.described
        self._plan = described.plan
        self._numbers = {weight.name: number for number, weight in enumerate(described.weights)}
        self._pieces: list[list[tuple[int, Move, int]]] = [[] for _ in described.weights]
        for bucket, moves in enumerate(self._plan.of(described.layout.size)):
            begins = [0] * described.layout.size
            for move in moves:
                self._pieces[move.weight].append((bucket, move, begins[move.source]))
                begins[move.source] += move.size
        self._left = set(self._numbers)
        self._bucket, self._messages = -1, dict[int, Bytes]()
        self.damaged: list[str] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor."""
        return self.part(name, whole(self._plan.weights[self._numbers[name]].shape))

    def part(self, name: str, box: Box) -> Tensor:
        """What lies in a box of a tensor: of pieces that reach into it, only this is copied."""
        number = self._numbers[name]
        made = torch.empty(box.shape, dtype=getattr(torch, self._source.described.kinds[number]))
        reaching = [(piece, common) for piece in self._pieces[number] if (common := piece[1].box.common(box))]
        for bucket, own in groupby(reaching, key=lambda reached: reached[0][0]):
            self._copy(bucket, [(move, begin, common) for (_, move, begin), common in own], box, made)
        self._left.discard(name)
        if not self._left and self._messages:
            self._messages.clear()
            self._source.leave()
        return made

    def _copy(self, bucket: int, pieces: Sequence[tuple[Move, int, Box]], box: Box, made: Tensor) -> None:
        self._come(bucket, {move.source for move, _, _ in pieces})
        for move, begin, common in pieces:
            message = self._messages[move.source][begin : begin + move.size]
            numbers = message.reshape(*move.box.shape, -1)[common.inside(move.box)].copy()  # of the store, only views
            made[common.inside(box)] = torch.from_numpy(numbers).view(made.dtype).view(common.shape)

    def _come(self, bucket: int, ranks: set[int]) -> None:
        """Let go of another bucket's messages, and get those that are missing of this one: views of the store."""
        if bucket != self._bucket:
            self._bucket, self._messages = bucket, {}
        missing = sorted(ranks - self._messages.keys())
        if missing:
            came = self._source.fetch(bucket, missing)
            for rank, message in zip(missing, came, strict=True):
                self._messages[rank] = self._checked(rank, message) if self._source.checksums else message

    def _checked(self, rank: int, message: Bytes) -> Bytes:
        """A message without its checksum, sent again until it is what was sent."""
        said = (
            f"bucket {self._bucket} of the weights of learner rank {rank} arrived damaged at a sampler: "
            "its checksum differs"
        )
        for attempt in range(TRIES):
            if attempt:
                self.damaged.append(said)
                message = self._source.again(self._bucket, rank)
            if intact(message):
                return message[:-CHECKSUM_BYTES]
        raise Corrupted(f"{said}; this was tried {TRIES} times, look at the network and the memory of both hosts")
