"""The ledger of the episode store: which rows exist, where they lie, which are ready, and who has taken which. Pure.

open ─▶ begin ─▶ waiting ─▶ (all rows of the group have all columns that a consumer needs) ─▶ taken ─▶ done
          ▲         │ lost     ▲                                                                │
          └─────────┘          └──────────────────────────── back ◀─────────────────────────────┘

Capacity for all rows of a group is reserved when the group is opened; a store full of incomplete groups would deadlock.
Rows are freed when every consumer is done with them.
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

FIRST_ROOM = 64


class RecordTable:
    """Records in plain numpy columns, ascending by number. kind: a structured dtype with an integer field "number"."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._room = np.zeros(FIRST_ROOM, kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._room.nbytes

    def __getitem__(self, field: str) -> NDArray[Any]:
        """A field of all records; may be changed in place."""
        return self._room[field][: self._count]

    def append(self, **fields: Any) -> None:
        """Add records with larger numbers than all present; a field has one value per record, or one for all."""
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
        kept = self._room[: self._count][chosen]
        self._room[: len(kept)] = kept
        self._count = len(kept)

    def find(self, numbers: Numbers) -> Numbers:
        """Index of each record, -1 where missing."""
        own = self["number"]
        at = np.minimum(np.searchsorted(own, numbers), max(len(own) - 1, 0))
        return np.where(own[at] == numbers, at, -1) if len(own) else np.full(len(numbers), -1)


NOWHERE = -1


class Places:
    """The R rows of a ledger: length, and the process of each column. A column that lies nowhere is not ready."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        where = ("where", np.int32, (len(self._names),))
        self.table = RecordTable(np.dtype([("number", np.int64), ("length", np.int64), where]))

    def append(self, numbers: Numbers) -> None:
        self.table.append(number=numbers, length=0, where=NOWHERE)

    def ready(self, numbers: Numbers, lengths: Numbers, process: int, columns: Sequence[str]) -> None:
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
        """Forget all columns of each row with a column on `process`: remade, it is a new row. Returns the numbers."""
        where = self.table["where"]
        struck = (where == process).any(axis=1)
        where[struck] = NOWHERE
        numbers: Numbers = self.table["number"][struck]
        return numbers

    def complete(self, columns: Sequence[int]) -> NDArray[np.bool_]:
        there = np.ones(len(self.table), np.bool_)
        for column in columns:
            there &= self.table["where"][:, column] != NOWHERE
        return there

    def columns(self, names: Iterable[str]) -> list[int]:
        """Indices of columns. Raises EarlError for an unknown one."""
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
    return ", ".join(map(str, numbers[:5].tolist())) + (", …" if len(numbers) > 5 else "")


WAITING, TAKEN, DONE = 0, 1, 2
NOBODY = -1
"""Maker of a group that no process has begun."""


class Groups:
    """The G groups of a ledger in the order they were opened, each identified by the number of its first row."""

    def __init__(self, consumers: Sequence[str]) -> None:
        self._consumers = consumers
        state = ("state", np.uint8, (len(consumers),))
        self.table = RecordTable(np.dtype([("number", np.int64), ("size", np.int64), ("maker", np.int32), state]))

    @property
    def sizes(self) -> Numbers:
        sizes: Numbers = self.table["size"]
        return sizes

    @property
    def starts(self) -> Numbers:
        return offsets_of(self.sizes)[:-1]

    def append(self, number: int, size: int) -> None:
        self.table.append(number=[number], size=size, maker=NOBODY, state=WAITING)

    def begin(self, number: int, process: int) -> None:
        """Record that a process makes a group. Raises EarlError when the group is missing or already begun."""
        at = self.table.find(np.array([number]))
        if at[0] < 0 or self.table["maker"][at[0]] != NOBODY:
            raise EarlError(
                f"group {number} is not in the dock, or is made already; begin what `open` gave or `lost` named, once"
            )
        self.table["maker"][at] = process

    def makers(self, numbers: Numbers) -> NDArray[np.int32]:
        makers: NDArray[np.int32] = self.table["maker"][self.table.find(numbers)]
        return makers

    def lost(self, process: int, rows: Numbers) -> Numbers:
        """Groups made by a process, and groups of the given rows, each once; their maker is reset."""
        number, maker = self.table["number"], self.table["maker"]
        struck = maker == process
        struck[np.searchsorted(number, rows, side="right") - 1] = True
        maker[struck] = NOBODY
        found: Numbers = number[struck]
        return found

    def waiting(self, consumer: str) -> NDArray[np.bool_]:
        waits: NDArray[np.bool_] = self._state(consumer) == WAITING
        return waits

    def take(self, consumer: str, at: Numbers) -> None:
        self._state(consumer)[at] = TAKEN

    def settle(self, consumer: str, numbers: Numbers, to: int) -> None:
        """Set the state of groups that a consumer had taken. Raises EarlError when it had not."""
        at, state = self.table.find(numbers), self._state(consumer)
        if (at < 0).any() or (state[at] != TAKEN).any():
            raise EarlError(
                f"{consumer!r} has not taken groups {few(numbers)}, or has said what became of them; "
                "say done or back once for each hand-out"
            )
        state[at] = to

    def over(self) -> NDArray[np.bool_]:
        over: NDArray[np.bool_] = (self.table["state"] == DONE).all(axis=1)
        return over

    def idle(self, number: int) -> NDArray[np.bool_]:
        """A mask that selects one group, [G]. Raises EarlError when the group is missing or taken by a consumer."""
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


# Consumers and what they are handed: lengths and places, from which the transfer is planned.

EVEN = Work()


@dataclass(frozen=True, slots=True)
class Consumer:
    """A stage that reads every row once. It gets a group when all rows of the group have all columns that it needs."""

    name: str
    columns: tuple[Column, ...]
    processes: Numbers  # [dp, cp, tp], the process of each rank
    in_order: bool = False
    """Takes exactly the number of groups it asks for, in the order they were opened: a learner's step. Otherwise it
    takes ready groups, at most that many; waiting for a fixed number could deadlock when the store is full."""
    work: Work = EVEN

    def parts(self, lengths: Numbers, where: NDArray[np.int32]) -> Numbers:
        """The part of each row, [N]: balanced work; a row stays where most of its bytes lie if that costs nothing."""
        dp = len(self.processes)
        own = np.full(int(max(where.max(initial=0), self.processes.max())) + 1, -1)
        for part in range(dp):
            own[self.processes[part]] = part
        held = np.zeros((len(lengths), dp + 1))  # the last column: held elsewhere
        for number, column in enumerate(self.columns):
            size = column.size_bytes * (lengths if column.axis == "token" else np.ones_like(lengths))
            np.add.at(held, (np.arange(len(lengths)), own[where[:, number]]), size)
        most = held[:, :dp].argmax(axis=1)
        here = np.where(held[:, :dp].any(axis=1), most, -1)
        return balance(self.work.of(lengths), dp, here)


@dataclass(frozen=True, slots=True)
class Handout:
    """Whole groups for one consumer, N rows; reserved for it until it calls `done` or `back`."""

    consumer: Consumer
    groups: Numbers  # by first row, in the order they were opened
    rows: Numbers  # [N], ascending
    lengths: Numbers
    where: NDArray[np.int32]  # [N, C], the process that holds each column
    parts: Numbers  # [N], the consumer's part that each row goes to

    @property
    def legs(self) -> tuple[Leg, ...]:
        """Columns grouped by axis and location. Rows are counted from 0, as in plans."""
        alike: dict[tuple[str, bytes], list[int]] = {}
        for number, column in enumerate(self.consumer.columns):
            alike.setdefault((column.axis, self.where[:, number].tobytes()), []).append(number)
        return tuple(self._leg(numbers) for numbers in alike.values())

    def transfer(self, hosts: Numbers) -> TransferPlan:
        """Plan the transfer of the rows from their makers to the consumer. hosts: [P], the host of each process."""
        return plan(self.lengths, self.legs, Spread(self.consumer.processes, self.parts), hosts)

    def _leg(self, numbers: list[int]) -> Leg:
        processes, parts = np.unique(self.where[:, numbers[0]], return_inverse=True)
        source = spread(Layout(dp=len(processes)), processes.tolist(), parts.reshape(-1))
        return Leg(tuple(self.consumer.columns[number] for number in numbers), source)


class Ledger:
    """Metadata of rows (length, process of each column) and of groups (size, maker, state for each consumer). A row is
    kept until every consumer is done with it. Raises EarlError when a consumer needs an unknown column."""

    def __init__(self, columns: Sequence[Column], consumers: Sequence[Consumer], capacity: int) -> None:
        self.capacity, self.closed = capacity, False
        self._places = Places(columns)
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._needs = {name: self._places.columns(c.name for c in own.columns) for name, own in self._consumers.items()}
        self._groups = Groups([*self._consumers])
        self._next = 0

    @property
    def free(self) -> int:
        return self.capacity - len(self._places.table)

    @property
    def nbytes(self) -> int:
        return self._places.table.nbytes + self._groups.table.nbytes

    def open(self, size: int) -> Numbers | None:
        """Consecutive numbers of a new group; None while capacity is short. Raises EarlError if it can never fit."""
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
        """Record that a process makes a group's rows; if the process is lost, so is the group. Raises EarlError when
        the group is missing, or was begun and not lost since."""
        self._groups.begin(group, process)

    def ready(self, numbers: Numbers, lengths: Numbers, process: int, columns: Sequence[str]) -> None:
        """Record that columns of some rows lie in the store of a process. Raises EarlError, and changes nothing,
        unless the rows are open and have none of these columns yet, with equal lengths for all columns of a row."""
        self._places.ready(numbers, lengths, process, columns)

    def take(self, consumer: str, groups: int) -> Handout | None:
        """The next groups of a consumer: at most `groups`, the oldest ready ones. None while there are not enough. An
        in-order consumer gets exactly `groups`; after `close`, the remaining ones. See `finished`."""
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
        """Settle a received handout; rows that no consumer waits for are removed. Raises EarlError if not taken."""
        self._groups.settle(handout.consumer.name, handout.groups, DONE)
        self._keep(~self._groups.over())

    def back(self, handout: Handout) -> None:
        """The consumer did not receive the groups; they wait again, in their old order. Raises as `done` does."""
        self._groups.settle(handout.consumer.name, handout.groups, WAITING)

    def lost(self, process: int) -> Numbers:
        """Rows with a part on a lost process become not ready, and groups it was making lose their maker. Returns the
        affected groups by first row, also taken ones: begin each again, or give it up."""
        return self._groups.lost(process, self._places.lost(process))

    def give_up(self, group: int) -> None:
        """Remove an incomplete group. Raises EarlError when it is missing, or taken and not done."""
        self._keep(~self._groups.idle(group))

    def gone(self, numbers: Numbers) -> Numbers:
        """Those of these rows that have been removed; the stores may free them."""
        gone: Numbers = numbers[self._places.table.find(numbers) < 0]
        return gone

    def finished(self, consumer: str) -> bool:
        return self.closed and not self._groups.waiting(consumer).any()

    def close(self) -> None:
        self.closed = True

    def waiting(self, consumer: str) -> tuple[Numbers, Numbers]:
        """Groups that are ready for a consumer, and those that are not yet, by first row."""
        waits, whole = self._groups.waiting(consumer), self._whole(consumer)
        number = self._groups.table["number"]
        return number[waits & whole], number[waits & ~whole]

    def makers(self, groups: Numbers) -> NDArray[np.int32]:
        return self._groups.makers(groups)

    def _whole(self, consumer: str) -> NDArray[np.bool_]:
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
