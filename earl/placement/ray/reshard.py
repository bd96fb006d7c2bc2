"""A learner's state from one layout to another: every rank gives its parts, and takes those that it needs.

    rank: parts ─▶ objects in the store of its host ─┐
    driver: what is where, references                ├─▶ rank of the other layout: the objects its boxes overlap with
    rank: …                                          ─┘

Ray's object store is shared memory: on one host nothing is copied but into it and out of it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from earl.engine.checkpoint_tensors import TensorPart
from earl.errors import EarlError
from earl.parallel.layout import Box

OBJECT_BYTES = 1 << 24
"""Tensors are put together until they have so many bytes."""
Reference = Any
"""`ray.ObjectRef`; Ray is not seen by the type checker."""
Piece = tuple[str, Box, tuple[int, ...]]
"""A tensor's name, which part of it, and the shape of the whole."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one rank gave."""

    pieces: tuple[tuple[Piece, ...], ...]
    """By object, in its order."""
    references: tuple[Reference, ...]
    steps: int
    """Of its optimizer, since its rows were prepared."""


def give(parts: Iterator[tuple[str, TensorPart]], steps: int) -> Given:
    """Put a rank's parts into Ray's object store, which needs no memory of the process itself."""
    pieces: list[tuple[Piece, ...]] = []
    references = []
    for several in _together(parts):
        pieces.append(tuple((name, part.box, part.shape) for name, part in several))
        references.append(ray.put([part.numbers.cpu().numpy() for _, part in several]))
    return Given(tuple(pieces), tuple(references), steps)


def _together(parts: Iterator[tuple[str, TensorPart]]) -> Iterator[list[tuple[str, TensorPart]]]:
    several: list[tuple[str, TensorPart]] = []
    size = 0
    for name, part in parts:
        several.append((name, part))
        size += part.numbers.nbytes
        if size >= OBJECT_BYTES:
            yield several
            several, size = [], 0
    if several:
        yield several


class Carried:
    """What all ranks gave: a source that any part of any tensor is read from. The objects live as long as it does."""

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
        """A part of a tensor. Raises EarlError when nobody gave it, or Ray's errors when who did is gone."""
        result, found = torch.empty(wanted.shape), 0
        for reference, place, box in self._places[name]:
            if (common := box.common(wanted)) is not None:
                array = self._got(reference)[place][common.inside(box)]
                result[common.inside(wanted)] = torch.from_numpy(np.array(array))  # Ray's own cannot be written to
                found += common.numbers
        if found != wanted.numbers:
            raise EarlError(f"no rank gave {name!r}, or a part of it, to the next layout; continue with --resume")
        return result

    def _got(self, reference: Reference) -> list[Any]:
        """Views of the store."""
        if reference not in self._arrays:
            self._arrays[reference] = ray.get(reference)
        return self._arrays[reference]
