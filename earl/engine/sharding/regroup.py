"""Regroups a model for its files: from every rank's boxes to whole tensors, each on the rank that writes it.

No rank ever holds more than its own boxes, its own files, and one round of the exchange.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, distributed

from earl.dispatch.weights import Weight, WeightPiece, regrouping
from earl.engine.checkpoint_tensors import TensorPart
from earl.engine.sharding.mesh import Mesh
from earl.parallel.layout import Axis

ROUND_BYTES = 1 << 25
"""What a rank sends in one round, and what it receives, at most."""


def regrouped(
    parts: Mapping[str, TensorPart], axes: Mapping[str, Axis], owners: Mapping[str, int], mesh: Mesh
) -> dict[str, Tensor]:
    """The tensors that this rank owns, whole and in host memory. All ranks call this, each with its parts."""
    layout = mesh.layout
    weights = [Weight(name, part.shape, part.numbers.dtype, axes.get(name)) for name, part in parts.items()]
    owned = {own.name: torch.empty(own.shape, dtype=own.dtype) for own in weights if owners[own.name] == mesh.rank}
    ranks = [owners[weight.name] for weight in weights]
    for pieces in regrouping(weights, ranks, layout, ROUND_BYTES // layout.size):
        for piece, numbers in _exchanged(pieces, weights, ranks, parts, mesh):
            weight = weights[piece.weight]
            owned[weight.name][piece.box.slices] = numbers.clone().view(weight.dtype).view(piece.box.shape)
    return owned


def _exchanged(
    pieces: Sequence[WeightPiece],
    weights: Sequence[Weight],
    owners: Sequence[int],
    parts: Mapping[str, TensorPart],
    mesh: Mesh,
) -> list[tuple[WeightPiece, Tensor]]:
    """The pieces for this rank's tensors, and their bytes in host memory."""
    going = sorted((piece for piece in pieces if piece.source == mesh.rank), key=lambda piece: owners[piece.weight])
    coming = sorted((piece for piece in pieces if owners[piece.weight] == mesh.rank), key=lambda piece: piece.source)
    given, taken = [0] * mesh.layout.size, [0] * mesh.layout.size
    sent = [torch.empty(0, dtype=torch.uint8, device=mesh.device)]
    for piece in going:
        part = parts[weights[piece.weight].name]
        numbers = part.numbers.detach()[piece.box.inside(part.box)].to(mesh.device)
        sent.append(numbers.flatten().view(torch.uint8))
        given[owners[piece.weight]] += piece.size
    for piece in coming:
        taken[piece.source] += piece.size
    came = torch.empty(sum(taken), dtype=torch.uint8, device=mesh.device)
    distributed.all_to_all_single(came, torch.cat(sent), taken, given)
    return [*zip(coming, torch.split(came.cpu(), [piece.size for piece in coming]), strict=True)]
