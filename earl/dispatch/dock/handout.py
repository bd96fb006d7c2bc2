"""Who reads from the dock, and what it is given at once: lengths and places, from which its transfer is planned."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.balance import Work, balance
from earl.dispatch.columns import Column
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.segments import Leg
from earl.dispatch.spread import Numbers, Spread, spread
from earl.parallel.layout import Layout

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
