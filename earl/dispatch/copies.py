"""Tensors of a model, and which box of each lies where."""

from collections.abc import Sequence
from dataclasses import dataclass

from earl.parallel.layout import Box, Layout


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that changes hands; of tied ones, one.

    Example:
        Weight("model.layers.0.mlp.down_proj.weight", (4096, 11008), 2, given=1, wanted=1)
    """

    name: str
    shape: tuple[int, ...]
    number_bytes: int
    given: int | None = None
    """The axis that tensor parallelism splits it along where it comes from; None: along none."""
    wanted: int | None = None
    """The same where it goes to."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a model, each spread over processes of its own.

    Example:
        Copies(Layout(tp=2), ((4, 5), (6, 7)))   # two samplers of two devices
    """

    layout: Layout
    """Of each copy."""
    processes: tuple[tuple[int, ...], ...]
    """By copy: the process of each rank. No process is several ranks."""

    def box(self, shape: Sequence[int], axis: int | None, process: int) -> Box | None:
        """What a process holds of a tensor; None when it has no part in this."""
        rank = next((copy.index(process) for copy in self.processes if process in copy), None)
        return None if rank is None else self.layout.box(shape, axis, rank)

    def boxes(self, shape: Sequence[int], axis: int | None) -> dict[Box, list[int]]:
        """The processes that have each box of a tensor; what has no numbers is left out."""
        found: dict[Box, list[int]] = {}
        for rank, alike in enumerate(zip(*self.processes, strict=True)):
            box = self.layout.box(shape, axis, rank)
            if box.numbers:
                found.setdefault(box, []).extend(alike)
        return found
