"""Context parallelism: the tokens of a packed micro-batch, split over the processes of a group.

    process 0 of 2:  pieces 0 and 3 ┐  embeddings, layers, output layer: own tokens
    process 1 of 2:  pieces 1 and 2 ┘  attention: own queries, keys and values of all tokens, gathered

All of them know all tokens, and in the end all have the scores of all: what they do with these is the same everywhere.
A token late in its row has more to attend to than an early one, so each has a piece of the front and its mirror image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, all_gather, reduce_scatter

from earl.engine.attention import Spans, spans
from earl.engine.sharding.tensor_parallel import summed


@dataclass(frozen=True, slots=True)
class SequencePiece:
    """Neighbouring tokens of a sequence, and what they attend to.

    Example:
        tokens 4 … 8 of rows of 7 and 5 -> start 4, stop 9, first 0, rows (3, 2) with 4 tokens before
    """

    start: int
    stop: int
    first: int
    """Where the row begins that the first token belongs to: keys and values are needed from there to `stop`."""
    rows: Spans


@dataclass(frozen=True, slots=True)
class Portion:
    """What one process computes of a sequence of T tokens: n of them, which lie in two pieces."""

    group: ProcessGroup
    pieces: tuple[SequencePiece, ...]
    """Without empty ones."""
    positions: Tensor
    """The place of each own token in its row, [1, n]."""
    places: Tensor
    """Of each own token in the sequence, [n]."""
    order: Tensor
    """Of each token of the sequence in what all processes have, each padded to the largest number, [T]."""
    padded: int
    """That largest number."""
    idle: bool
    """Whether there are too few tokens: then it computes the first one, too, of which nothing is read."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of own queries [n, heads, D] within each row; of keys and values, too, own ones are given."""
        own = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        gathered: Tensor = _Gathered.apply(own, self)  # type: ignore[no-untyped-call]
        width = key.shape[1] * key.shape[2]
        keys, values = gathered[:, :width].view(-1, *key.shape[1:]), gathered[:, width:].view(-1, *value.shape[1:])
        queries = torch.split(query, [piece.stop - piece.start for piece in self.pieces])
        attended = []
        for some, piece in zip(queries, self.pieces, strict=True):
            known = slice(piece.first, piece.stop)
            attended.append(piece.rows.attended(some, keys[known], values[known], scaling))
        return torch.cat(attended)

    def found(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the wanted places of the sequence are here, and where among the own tokens."""
        own = torch.full_like(self.order, -1)
        if not self.idle:
            own[self.places] = torch.arange(len(self.places), device=own.device)
        here = torch.nonzero(own[wanted] >= 0)[:, 0]
        return here, own[wanted[here]]

    def collected(self, parts: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
        """Vectors of which each process has some numbers: these, their places, and how many there are of all."""
        spread = [numbers.new_zeros(count).index_copy(0, places, numbers) for numbers, places, count in parts]
        whole = torch.split(summed(torch.cat(spread), self.group), [count for _, _, count in parts])
        return [numbers.clone() for numbers in whole]  # FSDP2 hooks what a module returns, and warns of views


def portion(rows: Spans, group: ProcessGroup) -> Portion:
    """This process's."""
    total, size, rank = sum(rows.lengths), distributed.get_world_size(group), distributed.get_rank(group)
    everyone = [_bounds(total, size, other) for other in range(size)]
    places = [torch.cat([torch.arange(*bounds) for bounds in own]) for own in everyone]
    padded = max(map(len, places))
    order = torch.empty(total, dtype=torch.long)
    for other, own in enumerate(places):
        order[own] = torch.arange(len(own)) + other * padded
    device, idle = rows.offsets.device, not len(places[rank])
    mine = [bounds for bounds in everyone[rank] if bounds[0] < bounds[1]] or [(0, 1)]  # models take no empty tensors
    pieces = tuple(_piece(rows, *bounds) for bounds in mine)
    here = torch.cat([torch.arange(*bounds) for bounds in mine]).to(device)
    return Portion(group, pieces, rows.positions[:, here], here, order.to(device), padded, idle)


def _bounds(total: int, size: int, rank: int) -> list[tuple[int, int]]:
    """Where the pieces of a process begin and end.

    Example:
        >>> [_bounds(17, 2, rank) for rank in range(2)]
        [[(0, 4), (12, 17)], [(4, 8), (8, 12)]]
    """
    return [
        (total * number // (2 * size), total * (number + 1) // (2 * size)) for number in (rank, 2 * size - 1 - rank)
    ]


def _piece(rows: Spans, start: int, stop: int) -> SequencePiece:
    ends = [*accumulate(rows.lengths)]
    begins = [end - length for end, length in zip(ends, rows.lengths, strict=True)]
    touched = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < stop and end > start]
    lengths = tuple(min(end, stop) - max(begin, start) for begin, end in touched)
    first = touched[0][0]
    return SequencePiece(start, stop, first, spans(lengths, rows.offsets.device, start - first))


class _Gathered(torch.autograd.Function):
    """Rows [n, W] of each process's own tokens, put together as [T, W]; their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, whose: Portion) -> Tensor:
        ctx.whose = whose
        padded = own.new_zeros(whose.padded, own.shape[1])
        padded[: len(own)] = own
        parts = own.new_empty(distributed.get_world_size(whose.group) * whose.padded, own.shape[1])
        all_gather([*torch.split(parts, whose.padded)], padded, group=whose.group)
        return parts[whose.order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whose, (gradient,) = ctx.whose, gradients
        parts = gradient.new_zeros(distributed.get_world_size(whose.group) * whose.padded, gradient.shape[1])
        parts[whose.order] = gradient
        own = gradient.new_empty(whose.padded, gradient.shape[1])
        reduce_scatter(own, [*torch.split(parts, whose.padded)], group=whose.group)
        return own[: len(whose.places)], None
