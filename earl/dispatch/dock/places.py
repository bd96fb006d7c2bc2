"""Rows by number: how long each is, and on which process each of its columns lies. A column that lies nowhere is not
ready."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.columns import Column
from earl.dispatch.dock.table import Table
from earl.dispatch.spread import Numbers
from earl.errors import EarlError, unknown

NOWHERE = -1


class Places:
    """The rows of a ledger, R of them; `at` are places among them, not numbers.

    Args:
        columns: all that a row may have.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        where = ("where", np.int32, (len(self._names),))
        self.table = Table(np.dtype([("number", np.int64), ("length", np.int64), where]))

    def append(self, numbers: Numbers) -> None:
        """Rows of which nothing is ready."""
        self.table.append(number=numbers, length=0, where=NOWHERE)

    def ready(self, numbers: Numbers, lengths: Numbers, process: int, columns: Sequence[str]) -> None:
        """Columns of some rows lie on a process. See `Ledger.ready`."""
        at, own = self._at(numbers), self.columns(columns)
        where, length = self.table["where"], self.table["length"]
        if (where[at][:, own] != NOWHERE).any() or len(np.unique(at)) < len(at):
            raise EarlError(f"columns {', '.join(columns)} of rows {few(numbers)} are ready already; say so once")
        differ = (where[at] != NOWHERE).any(axis=1) & (length[at] != lengths)
        if differ.any():
            raise EarlError(
                f"rows {few(numbers[differ])} have another length in other columns; "
                "all columns of a row have its tokens"
            )
        length[at] = lengths
        where[at[:, None], own] = process

    def lost(self, process: int) -> Numbers:
        """Forget all columns of every row of which one lay on a process: made again it is another row.

        Returns:
            the numbers of these rows, ascending.
        """
        where = self.table["where"]
        struck = (where == process).any(axis=1)
        where[struck] = NOWHERE
        numbers: Numbers = self.table["number"][struck]
        return numbers

    def complete(self, columns: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each row has all of these columns, [R]."""
        there = np.ones(len(self.table), np.bool_)
        for column in columns:
            there &= self.table["where"][:, column] != NOWHERE
        return there

    def columns(self, names: Iterable[str]) -> list[int]:
        """Columns as numbers. Raises EarlError for one that no row has."""
        found = []
        for name in names:
            if name not in self._names:
                raise unknown("column", name, self._names)
            found.append(self._names.index(name))
        return found

    def _at(self, numbers: Numbers) -> Numbers:
        at = self.table.find(numbers)
        if (at < 0).any():
            raise EarlError(f"rows {few(numbers[at < 0])} are not in the dock; use the numbers that `open` gave")
        return at


def few(numbers: Numbers) -> str:
    """The first of them, in words."""
    return ", ".join(map(str, numbers[:5].tolist())) + (", …" if len(numbers) > 5 else "")
