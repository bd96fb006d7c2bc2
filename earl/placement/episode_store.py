"""The episode store of one rollout fragment: groups and rows stay there, summaries and counts go to the driver."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows
from earl.dispatch.rows import Shard
from earl.placement.async_rollout import Ticket
from earl.rollout.pack import Learnable, by_seat, num_rows, pack, trajectories_of
from earl.trajectory import Group, GroupOf, TrajectorySummary, summary_of

Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowTable:
    """Counts of N rows: 16 bytes per row."""

    lengths: Counts  # [N], tokens
    learned: Counts  # [N], trained tokens
    turns: Counts  # [N]; turns are numbered consecutively over the rows
    order: Counts  # [N], the index in the step of each row's group or episode

    @property
    def num_turns(self) -> int:
        return int(self.turns.sum())

    @property
    def first_turns(self) -> NDArray[np.int64]:
        """[N], the number of each row's first turn."""
        return np.cumsum(self.turns, dtype=np.int64) - self.turns

    @classmethod
    def of(cls, rows: Rows, order: Sequence[int] | NDArray[np.int64]) -> Self:
        """Count the tokens and turns of rows. Every row has at least one turn."""
        columns = (rows.lengths, rows.per_row(rows.mask), rows.per_row(rows.value_mask), order)
        return cls(*(np.asarray(column, np.int32) for column in columns))


class EpisodeStore:
    """The groups and rows of one fragment. learnable: which episodes are learned from."""

    def __init__(self, learnable: Learnable) -> None:
        self._learnable = learnable
        self._groups: dict[Ticket, Group] = {}
        self._rows: Rows = pack([])

    def keep(self, groups: Mapping[Ticket, Group]) -> dict[Ticket, GroupOf[TrajectorySummary]]:
        """Store groups; returns their trajectory summaries."""
        self._groups |= groups
        return {ticket: GroupOf(tuple(map(summary_of, group.trajectories))) for ticket, group in groups.items()}

    def table(self, step: int) -> RowTable:
        tickets = sorted(ticket for ticket in self._groups if ticket.step == step)
        kept = [(t.number, own) for t in tickets for own in self._learnable.learned(by_seat([self._groups[t]]))]
        order = [number for number, group in kept for own in group.trajectories for _ in range(num_rows(own))]
        return self.pack(pack(trajectories_of(group for _, group in kept)), order)

    def pack(self, rows: Rows, order: Sequence[int] | NDArray[np.int64]) -> RowTable:
        self._rows = rows
        return RowTable.of(rows, order)

    def shard(self, numbers: NDArray[np.int64], columns: Iterable[str]) -> Shard:
        """The rows as dispatched, turns counted from each row's first. numbers: [N], over all fragments, ascending."""
        rows, starts = self._rows, np.zeros(len(numbers), np.int64)
        table = RowTable.of(rows, numbers)
        own = {name: getattr(rows, name) for name in columns}
        if "turns" in own:
            own["turns"] = shift_turns(rows.turns, rows.lengths, -table.first_turns)
        return Shard(numbers, starts, rows.offsets, own)

    def whole(self, tickets: Iterable[Ticket]) -> dict[Ticket, Group]:
        return {ticket: self._groups[ticket] for ticket in tickets if ticket in self._groups}

    def drop(self, version: int) -> None:
        """Drop groups up to step `version`: they have been learned from."""
        self._groups = {ticket: group for ticket, group in self._groups.items() if ticket.step > version}

    def clear(self) -> None:
        self._groups = {}


def shift_turns(turns: NDArray[np.int32], lengths: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int32]:
    """Turn numbers [T] with `by` [N] added in each row; -1 (no turn) stays."""
    return np.where(turns >= 0, turns + np.repeat(by, lengths), -1).astype(np.int32)
