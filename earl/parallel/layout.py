"""Which part of every tensor a process holds: pure arithmetic, the same on every process.

A tensor that tensor parallelism splits is first cut along one axis into `tp` parts; what remains is cut along its
first axis into `dp · cp` parts (FSDP2). Both cut as `torch.chunk` does, so the last parts may be smaller, or empty.
A part is always a box of the whole tensor, which is what makes checkpoints independent of the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: where it begins and how large it is, by axis."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def slices(self) -> Slices:
        """The box as an index of the whole tensor."""
        return tuple(slice(start, start + size) for start, size in zip(self.offset, self.shape, strict=True))

    def common(self, other: "Box") -> "Box | None":
        """What lies in both; None when nothing does."""
        starts = [max(a, b) for a, b in zip(self.offset, other.offset, strict=True)]
        ends = [min(a.stop, b.stop) for a, b in zip(self.slices, other.slices, strict=True)]
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(tuple(starts), shape) if all(size > 0 for size in shape) else None

    def inside(self, outer: "Box") -> Slices:
        """The box as an index of the part that `outer` is."""
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.shape).slices


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes share a model.

    Rank = (dp_rank · cp + cp_rank) · tp + tp_rank: the processes of one tp group are neighbours. Those of a tp group
    compute the same tokens, those of a cp group other tokens of the same rows, those of a dp group other rows.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1

    @property
    def size(self) -> int:
        """Processes."""
        return self.dp * self.tp * self.cp

    def box(self, shape: Sequence[int], axis: int | None, rank: int) -> Box:
        """What `rank` holds of a tensor that tensor parallelism splits along `axis`, None: along none.

        Example:
            >>> [Layout(2, 2).box((8, 6), 1, rank).offset for rank in range(4)]   # columns by tp, then rows by dp
            [(0, 0), (0, 3), (4, 0), (4, 3)]
        """
        offset, size = [0] * len(shape), list(shape)
        for along, parts, own in ((axis, self.tp, rank % self.tp), (0, self.dp * self.cp, rank // self.tp)):
            if along is not None and size:
                start, size[along] = chunk(size[along], parts, own)
                offset[along] += start
        return Box(tuple(offset), tuple(size))

    def keeps(self, axis: int | None, rank: int) -> bool:
        """Whether `rank` is the one that saves its part, of those that hold the same."""
        return axis is not None or rank % self.tp == 0


def chunk(length: int, parts: int, own: int) -> tuple[int, int]:
    """Start and length of a part, as `torch.chunk` cuts.

    Example:
        >>> [chunk(106, 4, own) for own in range(4)]   # 27 + 27 + 27 + 25
        [(0, 27), (27, 27), (54, 27), (81, 25)]
    """
    whole = -(-length // parts)
    start = min(own * whole, length)
    return start, min(whole, length - start)


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return Box((0,) * len(shape), tuple(shape))
