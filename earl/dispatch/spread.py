"""Where rows lie: which rank of a layout holds which tokens of which row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.parallel.layout import Layout

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows over the ranks of a layout: a row belongs to one part, and lies on all ranks of this part.

    Ranks of a tp group hold the same tokens, those of a cp group consecutive ranges, cut as `torch.chunk` cuts.

    Example:
        Spread(Layout(dp=2, tp=2), [[[0, 1]], [[2, 3]]], parts=[0, 1, 1])   # row 0 on 0 and 1, rows 1 and 2 on 2 and 3
    """

    processes: Numbers
    """[dp, cp, tp], the process of each rank. One process may be several ranks, of several spreads."""
    parts: Numbers
    """[N], the part of each row: its number along dp."""

    @property
    def layout(self) -> Layout:
        """How the processes share the rows."""
        dp, cp, tp = self.processes.shape
        return Layout(dp, tp, cp)

    def bounds(self, lengths: Numbers) -> Numbers:
        """Where each rank's range of each row begins, and the end, [N, cp + 1]."""
        cp = self.processes.shape[1]
        whole = -(-lengths[:, None] // cp)
        bounds: Numbers = np.minimum(np.arange(cp + 1) * whole, lengths[:, None])
        return bounds

    def ranges(self, process: int, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The rows that a process holds, ascending, and the first token of each and the one behind its last.

        A process that is several ranks of one part would hold several ranges of a row; that is refused.
        """
        parts, cuts = np.unique(np.argwhere((self.processes == process).any(axis=2)), axis=0).T.reshape(2, -1)
        assert len(np.unique(parts)) == len(parts), f"process {process} is several context-parallel ranks of one part"
        cut = np.full(self.processes.shape[0], -1)
        cut[parts] = cuts
        rows = np.flatnonzero(cut[self.parts] >= 0)
        bounds, own = self.bounds(lengths[rows]), cut[self.parts[rows]]
        chosen = np.arange(len(rows))
        starts, stops = bounds[chosen, own], bounds[chosen, own + 1]
        some = stops > starts
        return rows[some], starts[some], stops[some]

    def flat(self) -> Self:
        """The same for columns of one number per row: every rank of a part holds it."""
        dp, cp, tp = self.processes.shape
        return type(self)(self.processes.reshape(dp, 1, cp * tp), self.parts)


def spread(layout: Layout, processes: Sequence[int], parts: Sequence[int] | Numbers) -> Spread:
    """Rows over a layout, whose ranks are the given processes, in order.

    Example:
        spread(Layout(dp=2, tp=2), range(4), [0, 1, 1])
    """
    assert len(processes) == layout.size, f"{layout} has {layout.size} ranks, not {len(processes)}"
    grid = np.asarray(processes, np.int64).reshape(layout.dp, layout.cp, layout.tp)
    return Spread(grid, np.asarray(parts, np.int64))
