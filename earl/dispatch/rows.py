"""Rows: columns, where rows lie (`Spread`), the rows of one process (`Shard`), and balancing work over consumers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.errors import unknown
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape

Numbers = NDArray[np.int64]
Columns = Mapping[str, np.dtype[Any]]
"""By name, the type of the number that a column has for every token."""

COLUMNS: Columns = {
    "tokens": np.dtype("int32"),
    "mask": np.dtype("bool"),
    "targets": np.dtype("int32"),
    "logprobs": np.dtype("float32"),
    "turns": np.dtype("int32"),
    "value_mask": np.dtype("bool"),
    "reference": np.dtype("float32"),
    "values": np.dtype("float32"),
    "advantages": np.dtype("float32"),
    "returns": np.dtype("float32"),
}

LEARNED = ("tokens", "mask", "logprobs", "turns", "value_mask")
"""Columns of sampled rows; their targets are the sampled tokens."""
LABELLED = (*LEARNED, "targets")
"""The same where a teacher labelled them."""
TAUGHT = ("tokens", "mask", "targets", "turns", "value_mask")
"""Columns of a teacher's rows, which have no sampled log-probs."""


def columns(names: Iterable[str]) -> Columns:
    """Columns by name. Raises EarlError for an unknown one."""
    wanted = [*names]
    if others := [name for name in wanted if name not in COLUMNS]:
        raise unknown("column", others[0], COLUMNS)
    return {name: COLUMNS[name] for name in wanted}


def token_bytes(columns: Columns) -> int:
    return sum(kind.itemsize for kind in columns.values())


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows over the ranks of a layout: a row belongs to one part, and lies on all ranks of this part. Ranks of a tp
    group hold the same tokens, those of a cp group consecutive ranges, cut as `torch.chunk` cuts."""

    processes: Numbers
    """[dp, cp, tp], the process of each rank. One process may be several ranks, of several spreads."""
    parts: Numbers  # [N], the part of each row: its index along dp

    @property
    def layout(self) -> Layout:
        dp, cp, tp = self.processes.shape
        return Layout(dp, tp, cp)

    def bounds(self, lengths: Numbers) -> Numbers:
        """Where each rank's range of each row begins, and the end, [N, cp + 1]."""
        cp = self.processes.shape[1]
        whole = -(-lengths[:, None] // cp)
        bounds: Numbers = np.minimum(np.arange(cp + 1) * whole, lengths[:, None])
        return bounds

    def ranges(self, process: int, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Rows that a process holds, ascending, the first token of each, and one past its last. A process may not be
        several context-parallel ranks of one part: it would hold several ranges of a row."""
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


def spread(layout: Layout, processes: Sequence[int], parts: Sequence[int] | Numbers) -> Spread:
    """Rows over a layout, whose ranks are the given processes in order."""
    assert len(processes) == layout.size, f"{layout} has {layout.size} ranks, not {len(processes)}"
    # The pipeline stages of a sampler hold the same rows as its tp ranks.
    grid = np.asarray(processes, np.int64).reshape(layout.dp, layout.cp, -1)
    return Spread(grid, np.asarray(parts, np.int64))


@dataclass(frozen=True, slots=True)
class Shard:
    """T tokens of one process, end to end, not padded. rows [3, 8], starts [0, 40], offsets [0, 7, 12]: row 3 from its
    first token, row 8 from its 41st."""

    rows: Numbers
    starts: Numbers  # [n], the first token held of each row
    offsets: Numbers  # [n + 1], where each row begins in the columns
    columns: Mapping[str, NDArray[np.generic]]  # [T], by name

    def begins(self, row: Numbers, start: Numbers) -> Numbers:
        """Where ranges begin in the columns, given their rows and first tokens. All rows must be in this shard."""
        at = np.searchsorted(self.rows, row)
        begins: Numbers = self.offsets[at] + start - self.starts[at]
        return begins


def ranges(starts: Numbers, lengths: Numbers) -> Numbers:
    """Consecutive numbers from each start, end to end: starts [7, 2] and lengths [2, 3] give [7, 8, 2, 3, 4]."""
    ends = np.cumsum(lengths)
    first: Numbers = np.repeat(starts - (ends - lengths), lengths)
    return first + np.arange(len(first))


def empty_shard(spread: Spread, process: int, lengths: Numbers, columns: Columns) -> Shard:
    """An uninitialised shard for the rows of a process. lengths: [N], in tokens."""
    rows, starts, stops = spread.ranges(process, lengths)
    offsets = offsets_of(stops - starts)
    return Shard(rows, starts, offsets, {name: np.empty(int(offsets[-1]), kind) for name, kind in columns.items()})


# Balancing: longest row first, each to the consumer with the least work (LPT: at most 4/3 of the optimum, and close to
# it with many rows); a row stays where it is when that costs nothing.

SLACK = 0.02
"""How far a consumer's work may exceed the mean to keep rows in place."""


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a row: linear in its tokens, plus attention, which grows with their square."""

    per_token: float = 1.0
    per_pair: float = 0.0

    def of(self, lengths: Numbers) -> NDArray[np.float64]:
        return self.per_token * lengths + self.per_pair * lengths.astype(np.float64) ** 2


def work_of(shape: ModelShape) -> Work:
    """FLOPs of forward and backward passes of a dense model (Kaplan et al., arXiv 2001.08361). 6 per parameter and
    token, and 6 per attended pair, layer and query element: half of the pairs are masked."""
    return Work(6.0 * shape.parameters, 6.0 * shape.layers * shape.heads * shape.head_dim)


def balance(work: NDArray[np.float64], parts: int, here: Numbers | None = None) -> Numbers:
    """The part of each row, [N]. work: [N]; here: [N], the part where a row already lies, -1 for none."""
    loads = np.zeros(parts)
    most = (1 + SLACK) * work.sum() / parts
    dealt = np.zeros(len(work), np.int64)
    for row in np.argsort(-work, kind="stable").tolist():
        own = -1 if here is None else int(here[row])
        if own < 0 or loads[own] + work[row] > most:
            own = int(loads.argmin())
        dealt[row] = own
        loads[own] += work[row]
    return dealt


def even_counts(rows: int, parts: int) -> Numbers:
    """The split of single controllers: consecutive chunks of equally many rows, [N]."""
    return np.arange(rows) * parts // max(rows, 1)
