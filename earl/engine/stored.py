"""Tensors in safetensors files, of which any part can be read, whoever wrote which part.

    learner/rank-00000.safetensors …    its header says {"places": {"exp_avg/model.norm.weight": {shape, offset}, …}}

A tensor without a place is there as a whole: the weights of a Hugging Face folder are read by the same code.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from earl.errors import EarlError
from earl.parallel.layout import Box

PLACES = "places"
"""The key of a file's metadata with the place of each of its tensors."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process holds of a tensor."""

    numbers: Tensor
    box: Box
    shape: tuple[int, ...]
    """Of the whole."""


class Source(Protocol):
    """Tensors of which any part can be read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the whole tensors, by name."""

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor, to be copied from."""


def write(path: Path, parts: Mapping[str, Part]) -> None:
    """Write parts, and of each its place in the whole."""
    places = {name: {"shape": part.shape, "offset": part.box.offset} for name, part in parts.items()}
    numbers = {name: part.numbers.contiguous() for name, part in parts.items()}
    save_file(numbers, path, metadata={PLACES: json.dumps(places)})  # of one key alone: the order of several is random


class Stored:
    """The tensors of all safetensors files of a folder.

    Raises:
        EarlError: on reading what is not there, or is not whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, list[tuple[Path, Box]]] = defaultdict(list)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with self._opened(path) as file:
                places = json.loads((file.metadata() or {}).get(PLACES, "{}"))
                for name in file.keys():  # noqa: SIM118
                    own = tuple(file.get_slice(name).get_shape())
                    place = places.get(name, {"shape": own, "offset": [0] * len(own)})
                    self._places[name].append((path, Box(tuple(place["offset"]), own)))
                    self.shapes[name] = tuple(place["shape"])

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor; only the parts of files that overlap with it are read."""
        pieces = [(path, box, common) for path, box in self._places[name] if (common := box.common(wanted))]
        if sum(common.numbers for _, _, common in pieces) != wanted.numbers:
            raise EarlError(f"{self._folder} lacks {name!r}, or a part of it; was every process's file copied?")
        result: Tensor | None = None
        for path, box, common in pieces:
            with self._opened(path) as file:
                index = common.inside(box)
                part: Tensor = file.get_slice(name)[index] if index else file.get_tensor(name)
            if common == wanted:
                return part
            result = torch.empty(wanted.shape, dtype=part.dtype) if result is None else result
            result[common.inside(wanted)] = part
        assert result is not None
        return result

    def _opened(self, path: Path) -> "safe_open":
        try:
            return safe_open(path, framework="pt")
        except SafetensorError as error:
            raise EarlError(f"{path} cannot be read as safetensors: {error}; restore it, or start anew") from error
