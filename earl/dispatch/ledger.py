"""Which rows there are, where they lie, what of them is ready, who has taken which, and who gets which next. Pure.

    open ─▶ begin ─▶ waiting ─▶ (all rows of the group have all columns that a consumer needs) ─▶ taken ─▶ done
              ▲         │ lost     ▲                                                                │
              └─────────┘          └──────────────────────────── back ◀─────────────────────────────┘

A group's room is reserved for all of its rows when it is opened: a dock that is full of halves would never move again.
Its rows go when every consumer is done with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.dispatch.plan import Leg, TransferPlan, plan
from earl.dispatch.rows import Column, Numbers, Spread, Work, balance, ranges, spread
from earl.errors import EarlError, unknown
from earl.parallel.layout import Layout

# Records in ascending order of their number: they come at the end, change anywhere, and go from anywhere.

FIRST_ROOM = 64


class RecordTable:
    """Plain arrays behind one another: no object for each record.

    Args:
        kind: a structured type with an integer field "number".
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._room = np.zeros(FIRST_ROOM, kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of all records, and of the room for more."""
        return self._room.nbytes

    def __getitem__(self, field: str) -> NDArray[Any]:
        """A field of all records, which may be changed in place."""
        return self._room[field][: self._count]

    def append(self, **fields: Any) -> None:
        """Add records. Each number is larger than all that there are.

        Args:
            fields: values of every field, one for each record or one for all of them.
        """
        more = len(fields["number"])
        if self._count + more > len(self._room):
            grown = np.zeros(max(self._count + more, 2 * self._count), self._room.dtype)
            grown[: self._count] = self._room[: self._count]
            self._room = grown
        new = self._room[self._count : self._count + more]
        for field, values in fields.items():
            new[field] = values
        self._count += more

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Only these records remain."""
        kept = self._room[: self._count][chosen]
        self._room[: len(kept)] = kept
        self._count = len(kept)

    def find(self, numbers: Numbers) -> Numbers:
        """Where records stand, -1 for one that is not there."""
        own = self["number"]
        at = np.minimum(np.searchsorted(own, numbers), max(len(own) - 1, 0))
        return np.where(own[at] == numbers, at, -1) if len(own) else np.full(len(numbers), -1)


# Rows by number: how long each is, and on which process each of its columns lies. A column that lies nowhere is not
# ready.

NOWHERE = -1


class Places:
    """The rows of a ledger, R of them; `at` are places among them, not numbers.

    Args:
        columns: all that a row may have.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        where = ("where", np.int32, (len(self._names),))
        self.table = RecordTable(np.dtype([("number", np.int64), ("length", np.int64), where]))

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


# Groups in the order in which they were opened: how many rows, who makes them, and what each is to every consumer.

WAITING, TAKEN, DONE = 0, 1, 2
"""What a group is to a consumer."""
NOBODY = -1
"""Who makes a group that nobody has begun."""


class Groups:
    """The groups of a ledger, G of them, each named by the number of its first row.

    Args:
        consumers: their names.
    """

    def __init__(self, consumers: Sequence[str]) -> None:
        self._consumers = consumers
        state = ("state", np.uint8, (len(consumers),))
        self.table = RecordTable(np.dtype([("number", np.int64), ("size", np.int64), ("maker", np.int32), state]))

    @property
    def sizes(self) -> Numbers:
        """[G], in rows."""
        sizes: Numbers = self.table["size"]
        return sizes

    @property
    def starts(self) -> Numbers:
        """[G], where the rows of each begin."""
        return offsets_of(self.sizes)[:-1]

    def append(self, number: int, size: int) -> None:
        """A group that everybody waits for, and nobody makes."""
        self.table.append(number=[number], size=size, maker=NOBODY, state=WAITING)

    def begin(self, number: int, process: int) -> None:
        """A process makes a group. Raises EarlError when it is not there, or another one does."""
        at = self.table.find(np.array([number]))
        if at[0] < 0 or self.table["maker"][at[0]] != NOBODY:
            raise EarlError(
                f"group {number} is not in the dock, or is made already; begin what `open` gave or `lost` named, once"
            )
        self.table["maker"][at] = process

    def makers(self, numbers: Numbers) -> NDArray[np.int32]:
        """The process that makes, or made, each of some groups."""
        makers: NDArray[np.int32] = self.table["maker"][self.table.find(numbers)]
        return makers

    def lost(self, process: int, rows: Numbers) -> Numbers:
        """The groups that a process makes, or made, and those of some rows, each once: nobody makes them now."""
        number, maker = self.table["number"], self.table["maker"]
        struck = maker == process
        struck[np.searchsorted(number, rows, side="right") - 1] = True
        maker[struck] = NOBODY
        found: Numbers = number[struck]
        return found

    def waiting(self, consumer: str) -> NDArray[np.bool_]:
        """Whether each still waits for a consumer, [G]."""
        waits: NDArray[np.bool_] = self._state(consumer) == WAITING
        return waits

    def take(self, consumer: str, at: Numbers) -> None:
        """Groups, by their place, are a consumer's."""
        self._state(consumer)[at] = TAKEN

    def settle(self, consumer: str, numbers: Numbers, to: int) -> None:
        """What became of groups that a consumer had taken. Raises EarlError when it had not."""
        at, state = self.table.find(numbers), self._state(consumer)
        if (at < 0).any() or (state[at] != TAKEN).any():
            raise EarlError(
                f"{consumer!r} has not taken groups {few(numbers)}, or has said what became of them; "
                "say done or back once for each hand-out"
            )
        state[at] = to

    def over(self) -> NDArray[np.bool_]:
        """Whether every consumer is done with each, [G]."""
        over: NDArray[np.bool_] = (self.table["state"] == DONE).all(axis=1)
        return over

    def idle(self, number: int) -> NDArray[np.bool_]:
        """True for one group alone, [G]. Raises EarlError when it is not there, or on its way to a consumer."""
        at = self.table.find(np.array([number]))
        if at[0] < 0 or (self.table["state"][at] == TAKEN).any():
            raise EarlError(f"group {number} is not in the dock, or is taken; give up one that waits for its rows")
        found: NDArray[np.bool_] = np.arange(len(self.table)) == at[0]
        return found

    def _state(self, consumer: str) -> NDArray[np.uint8]:
        """[G], may be changed in place."""
        if consumer not in self._consumers:
            raise unknown("consumer", consumer, self._consumers)
        state: NDArray[np.uint8] = self.table["state"][:, self._consumers.index(consumer)]
        return state


# Who reads from the dock, and what it is given at once: lengths and places, from which its transfer is planned.

EVEN = Work()


@dataclass(frozen=True, slots=True)
class Consumer:
    """A stage that reads every row once.

    Example:
        Consumer("update", columns(["tokens", "advantages"]), np.arange(4).reshape(2, 1, 2))   # dp 2 x tp 2
    """

    name: str
    columns: tuple[Column, ...]
    """That it needs of a row; it is given a group when all rows of the group have all of them."""
    processes: Numbers
    """[dp, cp, tp], the process of each of its ranks."""
    in_order: bool = False
    """Whether it takes exactly as many groups as it asks for, in the order in which they were opened: a learner's step.
    Else it takes those that are ready, at most as many: if it waited for a number, it could be waiting for the room of
    the very group that all others wait for."""
    work: Work = EVEN
    """By which its ranks are given equally much."""

    def parts(self, lengths: Numbers, where: NDArray[np.int32]) -> Numbers:
        """The part of each row, [N]: equal work, and rows stay where most of their bytes lie if that costs nothing.

        Args:
            where: the process that has each column of each row, [N, C].
        """
        dp = len(self.processes)
        own = np.full(int(max(where.max(initial=0), self.processes.max())) + 1, -1)
        for part in range(dp):
            own[self.processes[part]] = part
        held = np.zeros((len(lengths), dp + 1))  # the last one: elsewhere
        for number, column in enumerate(self.columns):
            size = column.size_bytes * (lengths if column.axis == "token" else np.ones_like(lengths))
            np.add.at(held, (np.arange(len(lengths)), own[where[:, number]]), size)
        most = held[:, :dp].argmax(axis=1)
        here = np.where(held[:, :dp].any(axis=1), most, -1)
        return balance(self.work.of(lengths), dp, here)


@dataclass(frozen=True, slots=True)
class Handout:
    """Whole groups for one consumer, N rows. It is for this consumer alone until it says `done`, or gives it back.

    Example:
        rows = [6, 7, 8, 9], groups = [6, 8], parts = [0, 1, 1, 0]   # two groups of two, over two parts
    """

    consumer: Consumer
    groups: Numbers
    """By the number of their first row, in the order in which they were opened."""
    rows: Numbers
    """[N], their numbers, ascending."""
    lengths: Numbers
    """[N], in tokens."""
    where: NDArray[np.int32]
    """[N, C], the process that has each column."""
    parts: Numbers
    """[N], the part of the consumer that each row goes to."""

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The columns that lie alike, together. Rows are counted from 0 here, as plans do."""
        alike: dict[tuple[str, bytes], list[int]] = {}
        for number, column in enumerate(self.consumer.columns):
            alike.setdefault((column.axis, self.where[:, number].tobytes()), []).append(number)
        return tuple(self._leg(numbers) for numbers in alike.values())

    def transfer(self, hosts: Numbers) -> TransferPlan:
        """The way of the rows from those that made them to the consumer.

        Args:
            hosts: the host of each process, [P].
        """
        return plan(self.lengths, self.legs, Spread(self.consumer.processes, self.parts), hosts)

    def _leg(self, numbers: list[int]) -> Leg:
        processes, parts = np.unique(self.where[:, numbers[0]], return_inverse=True)
        source = spread(Layout(dp=len(processes)), processes.tolist(), parts.reshape(-1))
        return Leg(tuple(self.consumer.columns[number] for number in numbers), source)


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
