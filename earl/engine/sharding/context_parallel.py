"""Context parallelism: the tokens of a packed micro-batch, split over the processes of a group.

process 0 of 2:  pieces 0 and 3 ┐  embeddings, layers, output layer: own tokens
process 1 of 2:  pieces 1 and 2 ┘  attention: own queries, keys and values of all tokens, gathered

Tokens late in a row attend to more than early ones, so each process has a piece of the front and its mirror image. All
processes know all tokens, and all get the scores of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.nn.functional import pad

from earl.engine.attention import Spans, spans
from earl.engine.sharding.tensor_parallel import summed


@dataclass(frozen=True, slots=True)
class Portion:
    """The n of T tokens that one process computes, in two pieces."""

    group: ProcessGroup
    pieces: tuple[tuple[int, Spans], ...]
    """Of each piece that is not empty, where the first token's row begins, and the rows: tokens 4 … 8 of rows of 7 and
    5 are (0, rows (3, 2) with before = 4)."""
    positions: Tensor  # the position of each own token in its row, [1, n]
    places: Tensor  # the index of each own token in the sequence, [n]
    order: Tensor
    """The index of each token of the sequence in the padded all-gather result, [T]."""
    padded: int  # the largest n of any process
    idle: bool
    """Whether the process has no tokens of its own: it then computes token 0, and its result is not read."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of own queries [n, heads, D] within each row; keys and values are gathered from all processes."""
        own = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        # Gradients are summed over the processes, each of which gets those of its own rows.
        gathered = all_gather_single_autograd(pad(own, (0, 0, 0, self.padded - len(own))), 0, self.group)[self.order]
        width = key.shape[1] * key.shape[2]
        keys, values = gathered[:, :width].view(-1, *key.shape[1:]), gathered[:, width:].view(-1, *value.shape[1:])
        queries = torch.split(query, [sum(rows.lengths) for _, rows in self.pieces])
        attended = []
        for some, (first, rows) in zip(queries, self.pieces, strict=True):
            known = slice(first, first + rows.before + len(some))
            attended.append(rows.attended(some, keys[known], values[known], scaling))
        return torch.cat(attended)

    def found(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the wanted positions are here, and their indices among the own tokens."""
        own = torch.full_like(self.order, -1)
        if not self.idle:
            own[self.places] = torch.arange(len(self.places), device=own.device)
        here = torch.nonzero(own[wanted] >= 0)[:, 0]
        return here, own[wanted[here]]

    def collected(self, parts: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
        """Whole vectors from parts (values, their positions, length of the whole) that the processes hold."""
        spread = [numbers.new_zeros(count).index_copy(0, places, numbers) for numbers, places, count in parts]
        whole = torch.split(summed(torch.cat(spread), self.group), [count for _, _, count in parts])
        return [numbers.clone() for numbers in whole]  # FSDP2 hooks a module's outputs, and warns of views


def portion(rows: Spans, group: ProcessGroup) -> Portion:
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
    """Begin and end of a process's pieces: 17 tokens over 2 give [(0, 4), (12, 17)] and [(4, 8), (8, 12)]."""
    return [
        (total * number // (2 * size), total * (number + 1) // (2 * size)) for number in (rank, 2 * size - 1 - rank)
    ]


def _piece(rows: Spans, start: int, stop: int) -> tuple[int, Spans]:
    limits = pairwise(accumulate(rows.lengths, initial=0))
    touched = [(begin, end) for begin, end in limits if begin < stop and end > start]
    lengths = tuple(min(end, stop) - max(begin, start) for begin, end in touched)
    first = touched[0][0]
    return first, spans(lengths, rows.offsets.device, start - first)
