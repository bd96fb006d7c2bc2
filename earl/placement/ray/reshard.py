"""Moves a learner's state from one layout to another through Ray's object store.

Every rank puts its parts into the store of its host; the driver passes references; ranks of the new layout fetch the
objects that their boxes overlap with. On one host the store is shared memory: data is copied only into it and out of
it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from earl.engine.checkpoint_tensors import TensorPart, bundles
from earl.errors import EarlError
from earl.parallel.layout import Box

OBJECT_BYTES = 1 << 24  # tensors are collected into objects of at least this size
Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray
Piece = tuple[str, Box, tuple[int, ...]]
"""A tensor's name, the box of the part, and the shape of the whole."""


@dataclass(frozen=True, slots=True)
class Given:
    """The state that one rank gave."""

    pieces: tuple[tuple[Piece, ...], ...]  # by object, in its order
    references: tuple[Reference, ...]
    steps: int  # optimizer steps since its rows were prepared


def give(parts: Iterator[tuple[str, TensorPart]], steps: int) -> Given:
    """Put a rank's parts into Ray's object store, which needs no memory of the process itself."""
    pieces: list[tuple[Piece, ...]] = []
    references = []
    for several in bundles(parts, lambda own: own[1].numbers.nbytes, OBJECT_BYTES):
        pieces.append(tuple((name, part.box, part.shape) for name, part in several))
        references.append(ray.put([part.numbers.cpu().numpy() for _, part in several]))
    return Given(tuple(pieces), tuple(references), steps)


class Carried:
    """The state of all ranks, from which any part of any tensor can be read. It keeps the objects alive."""

    def __init__(self, given: Sequence[Given]) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, list[tuple[Reference, int, Box]]] = defaultdict(list)
        self._arrays: dict[Reference, list[Any]] = {}
        for own in given:
            for pieces, reference in zip(own.pieces, own.references, strict=True):
                for place, (name, box, shape) in enumerate(pieces):
                    self._places[name].append((reference, place, box))
                    self.shapes[name] = shape

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor. Raises EarlError when no rank gave it, and Ray's errors when its rank is gone."""
        result, found = torch.empty(wanted.shape), 0
        for reference, place, box in self._places[name]:
            if (common := box.common(wanted)) is not None:
                array = self._got(reference)[place][common.inside(box)]
                result[common.inside(wanted)] = torch.from_numpy(np.array(array))  # Ray's arrays are read-only
                found += common.numbers
        if found != wanted.numbers:
            raise EarlError(f"no rank gave {name!r}, or a part of it, to the next layout; continue with --resume")
        return result

    def _got(self, reference: Reference) -> list[Any]:
        if reference not in self._arrays:
            self._arrays[reference] = ray.get(reference)
        return self._arrays[reference]
