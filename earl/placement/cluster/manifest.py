"""What every process has to know of a step's rows to plan their way: numbers by row, and who is where."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows, offsets_of
from earl.dispatch.balance import Work, balance
from earl.dispatch.columns import columns
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.segments import Leg
from earl.dispatch.shard import Shard
from earl.dispatch.spread import spread
from earl.dispatch.volume import volume
from earl.engine.part import Part, minibatches, order_of
from earl.parallel.layout import Layout
from earl.placement.holdings import Counts, RowTable, shifted

LEARNED = ("tokens", "mask", "logprobs", "turns", "value_mask")
"""Columns of rows that were sampled: what is learned is what was sampled."""
TAUGHT = ("tokens", "mask", "targets", "turns", "value_mask")
"""Columns of rows of a teacher, who samples nothing."""


@dataclass(frozen=True, slots=True)
class Table(RowTable):
    """The rows of all workers, in the order of their episodes."""

    worker: Counts
    """[N], where each lies."""
    columns: tuple[str, ...]

    @classmethod
    def joined(cls, tables: Sequence[RowTable], names: tuple[str, ...]) -> Self:
        """Of each worker's own, by number."""
        order = np.concatenate([table.order for table in tables])
        sorting = np.argsort(order, kind="stable")
        worker = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table.order) for table in tables])

        def column(name: str) -> Counts:
            whole: Counts = np.concatenate([getattr(table, name) for table in tables])[sorting]
            return whole

        return cls(column("lengths"), column("learned"), column("turns"), order[sorting], worker[sorting], names)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A table, who is where, and to whom each row goes: 24 bytes a row, and a few for each process.

    Processes: first the ranks of the learner, then the workers.
    """

    table: Table
    part: Counts
    """[N], the data-parallel part of the learner that each row goes to."""
    layout: Layout
    """Of the learner."""
    hosts: Counts
    """[P], the host of each process."""

    def plan(self) -> TransferPlan:
        """The same on every process."""
        workers = len(self.hosts) - self.layout.size
        source = spread(Layout(workers), range(self.layout.size, len(self.hosts)), self.table.worker.astype(np.int64))
        target = spread(self.layout, range(self.layout.size), self.part.astype(np.int64))
        leg = Leg(columns(self.table.columns), source)
        return plan(self.table.lengths.astype(np.int64), [leg], target, self.hosts.astype(np.int64))

    def numbers(self, worker: int) -> NDArray[np.int64]:
        """The rows of a worker, ascending."""
        return np.flatnonzero(self.table.worker == worker)

    def taken(self, shard: Shard) -> tuple[Rows, Part]:
        """What came to a rank, as its learner has it."""
        given: dict[str, Any] = dict(shard.columns)
        lengths = np.diff(shard.offsets)
        given["turns"] = shifted(given["turns"], lengths, self.table.first_turns[shard.rows])
        given.setdefault("targets", given["tokens"])
        given.setdefault("logprobs", np.zeros(len(given["tokens"]), np.float32))
        rows = Rows(offsets=offsets_of(lengths), **given)
        counts = (self.table.learned.astype(np.int64), self.table.turns.astype(np.int64))
        return rows, Part(shard.rows, *counts, alone=True)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a dispatch cost."""

    bytes: int
    """That consumers lacked."""
    across: int
    """Of these, between hosts."""
    least: int
    """That had to go between hosts."""

    @classmethod
    def by(cls, plan: TransferPlan) -> Self:
        """A plan."""
        moved = volume(plan)
        return cls(moved.across + int(moved.inside.sum()), moved.across, int(moved.least.sum()))

    @property
    def metrics(self) -> dict[str, float]:
        """As they are recorded of a step."""
        return {
            "dispatch/bytes": float(self.bytes),
            "dispatch/bytes_across": float(self.across),
            "dispatch/bytes_least": float(self.least),
            "dispatch/ratio": self.across / self.least if self.least else 1.0,
        }


def shares(table: RowTable, work: Work, parts: int, seed: int, count: int) -> Counts:
    """The part of each row, so that all parts have as much to do in every minibatch of the first epoch.

    Args:
        seed: of the update, as is the count of minibatches.
    """
    part = np.zeros(len(table.lengths), np.int32)
    costs = work.of(table.lengths.astype(np.int64))
    for rows in minibatches(order_of(seed), len(part), count):
        part[rows] = balance(costs[rows], parts)
    return part
