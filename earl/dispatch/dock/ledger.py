"""Which rows there are, where they lie, what of them is ready, who has taken which, and who gets which next. Pure.

    open ─▶ begin ─▶ waiting ─▶ (all rows of the group have all columns that a consumer needs) ─▶ taken ─▶ done
              ▲         │ lost     ▲                                                                │
              └─────────┘          └──────────────────────────── back ◀─────────────────────────────┘

A group's room is reserved for all of its rows when it is opened: a dock that is full of halves would never move again.
Its rows go when every consumer is done with them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.columns import Column
from earl.dispatch.dock.groups import DONE, WAITING, Groups
from earl.dispatch.dock.handout import Consumer, Handout
from earl.dispatch.dock.places import Places
from earl.dispatch.shard import ranges
from earl.dispatch.spread import Numbers
from earl.errors import EarlError


class Ledger:
    """Numbers only: of a row its length and the process of each column, of a group its size and its consumers.

    Args:
        columns: all that a row may have.
        consumers: all that read; a row is kept until each of them is done with it.
        capacity: rows that the dock holds at most.

    Raises:
        EarlError: when a consumer needs a column that no row has.
    """

    def __init__(self, columns: Sequence[Column], consumers: Sequence[Consumer], capacity: int) -> None:
        self.capacity, self.closed = capacity, False
        self._places = Places(columns)
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._needs = {name: self._places.columns(c.name for c in own.columns) for name, own in self._consumers.items()}
        self._groups = Groups([*self._consumers])
        self._next = 0

    @property
    def free(self) -> int:
        """Rows that there is room for."""
        return self.capacity - len(self._places.table)

    @property
    def nbytes(self) -> int:
        """Of all that is known."""
        return self._places.table.nbytes + self._groups.table.nbytes

    def open(self, size: int) -> Numbers | None:
        """The numbers of a new group's rows, consecutive; None while there is no room for all of them.

        Raises:
            EarlError: when there never will be.
        """
        if self.closed:
            raise EarlError("the dock is closed: no group may be opened any more; open them before `close`")
        if not 0 < size <= self.capacity:
            raise EarlError(
                f"a group of {size} rows does not go into a dock of {self.capacity}; give a group at least one row, "
                "and the dock room for a whole group"
            )
        if size > self.free:
            return None
        numbers = np.arange(self._next, self._next + size)
        self._groups.append(self._next, size)
        self._places.append(numbers)
        self._next += size
        return numbers

    def begin(self, group: int, process: int) -> None:
        """A process makes the rows of a group from now on: it is lost with this process.

        Args:
            group: the number of its first row.

        Raises:
            EarlError: when there is none, or it was begun and not lost since.
        """
        self._groups.begin(group, process)

    def ready(self, numbers: Numbers, lengths: Numbers, process: int, columns: Sequence[str]) -> None:
        """Columns of some rows lie in the store of a process.

        Args:
            numbers: of rows that `open` gave and that have none of these columns yet, each once.
            lengths: their tokens, the same for every column of a row.

        Raises:
            EarlError: when one of this is not so; nothing is changed then.
        """
        self._places.ready(numbers, lengths, process, columns)

    def take(self, consumer: str, groups: int) -> Handout | None:
        """The next groups of a consumer, at most `groups`, the oldest that are ready.

        In order it is given exactly so many; after `close` the fewer that are left.

        Returns:
            None while there are not enough, and when there will be none any more: see `finished`.
        """
        waiting = np.flatnonzero(self._groups.waiting(consumer))
        whole, least = self._whole(consumer)[waiting], 1
        if self._consumers[consumer].in_order:
            whole = np.logical_and.accumulate(whole)
            least = min(groups, len(waiting)) if self.closed else groups
        chosen = waiting[whole][:groups]
        if len(chosen) < max(least, 1):
            return None
        self._groups.take(consumer, chosen)
        return self._handout(consumer, chosen)

    def done(self, handout: Handout) -> None:
        """The consumer has what it took. Rows that nobody waits for any more are gone.

        Raises:
            EarlError: when it has not taken them, or has said so before.
        """
        self._groups.settle(handout.consumer.name, handout.groups, DONE)
        self._keep(~self._groups.over())

    def back(self, handout: Handout) -> None:
        """The consumer did not get what it took: it is there as before, in its old order. Raises as `done` does."""
        self._groups.settle(handout.consumer.name, handout.groups, WAITING)

    def lost(self, process: int) -> Numbers:
        """Rows of which a part lay on a process are not ready any more, and what it was making will not be.

        Returns:
            their groups, by the number of the first row, also those that are taken: to be begun again, or to be given
            up.
        """
        return self._groups.lost(process, self._places.lost(process))

    def give_up(self, group: int) -> None:
        """A group that will not be whole: its room is free again.

        Args:
            group: the number of its first row.

        Raises:
            EarlError: when there is none, or a consumer has taken it and is not done.
        """
        self._keep(~self._groups.idle(group))

    def gone(self, numbers: Numbers) -> Numbers:
        """Of these rows those that nobody waits for any more: their stores may free them."""
        gone: Numbers = numbers[self._places.table.find(numbers) < 0]
        return gone

    def finished(self, consumer: str) -> bool:
        """Whether there is nothing left for a consumer to take."""
        return self.closed and not self._groups.waiting(consumer).any()

    def close(self) -> None:
        """No more groups are opened."""
        self.closed = True

    def waiting(self, consumer: str) -> tuple[Numbers, Numbers]:
        """Groups that are ready for a consumer, and those that are not yet, by the number of the first row."""
        waits, whole = self._groups.waiting(consumer), self._whole(consumer)
        number = self._groups.table["number"]
        return number[waits & whole], number[waits & ~whole]

    def makers(self, groups: Numbers) -> NDArray[np.int32]:
        """The process that each of some groups was begun by, `NOBODY` where none was or it was lost."""
        return self._groups.makers(groups)

    def _whole(self, consumer: str) -> NDArray[np.bool_]:
        """Of each group whether all rows have all columns that a consumer needs."""
        there = self._places.complete(self._needs[consumer])
        return np.logical_and.reduceat(there, self._groups.starts) if len(there) else there

    def _handout(self, consumer: str, groups: Numbers) -> Handout:
        reader, rows = self._consumers[consumer], self._places.table
        at = ranges(self._groups.starts[groups], self._groups.sizes[groups])
        lengths, where = rows["length"][at], rows["where"][at][:, self._needs[consumer]]
        parts = reader.parts(lengths, where)
        return Handout(reader, self._groups.table["number"][groups], rows["number"][at], lengths, where, parts)

    def _keep(self, groups: NDArray[np.bool_]) -> None:
        self._places.table.keep(np.repeat(groups, self._groups.sizes))
        self._groups.table.keep(groups)
