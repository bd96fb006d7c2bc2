"""The rows that one process made: plain arrays, held until nobody waits for them. They leave by plans only."""

from collections.abc import Iterable, Mapping
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.dispatch.columns import Column
from earl.dispatch.dock.handout import Handout
from earl.dispatch.segments import Leg
from earl.dispatch.shard import Shard
from earl.dispatch.spread import Numbers


class Store:
    """One process's part of the dock's rows. Threads of the process share it.

    Args:
        process: its number in all plans.
        columns: all that a row may have.
    """

    def __init__(self, process: int, columns: Iterable[Column]) -> None:
        self.process = process
        self._columns = {column.name: column for column in columns}
        self._rows: dict[int, dict[str, NDArray[np.generic]]] = {}
        self._lock = Lock()

    def put(self, row: int, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Keep columns of a row, before the ledger is told that they are ready.

        Args:
            values: [T] or [T, width] by name, or a single number for a column of one number per row.
        """
        kept = {name: _as(self._columns[name], array) for name, array in values.items()}
        with self._lock:
            self._rows.setdefault(row, {}).update(kept)

    def shards(self, handout: Handout) -> list[Shard]:
        """What of a hand-out lies here, leg by leg, as `execute` takes it."""
        with self._lock:
            return [self._shard(handout, leg) for leg in handout.legs]

    def free(self, rows: Iterable[int]) -> None:
        """Forget rows: those of `numbers` that the ledger calls gone."""
        with self._lock:
            for row in rows:
                del self._rows[int(row)]

    @property
    def numbers(self) -> Numbers:
        """The rows that lie here, ascending."""
        with self._lock:
            return np.array(sorted(self._rows), np.int64)

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        with self._lock:
            return sum(array.nbytes for row in self._rows.values() for array in row.values())

    def _shard(self, handout: Handout, leg: Leg) -> Shard:
        place = leg.source.processes.reshape(-1)[leg.source.parts]
        own = np.flatnonzero(place == self.process)
        lengths = handout.lengths[own] if leg.axis == "token" else np.ones(len(own), np.int64)
        rows = [self._rows[number] for number in handout.rows[own].tolist()]
        arrays = {column.name: _joined(column, [row[column.name] for row in rows]) for column in leg.columns}
        return Shard(own, np.zeros_like(own), offsets_of(lengths), arrays)


def _as(column: Column, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A row's column in its type and shape."""
    shape = (-1, column.width) if column.width > 1 else (-1,)
    return np.ascontiguousarray(array, column.dtype).reshape(shape)


def _joined(column: Column, arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else _as(column, np.zeros(0))
