"""What a rollout fragment keeps of a step: its groups and their rows stay there, outlines and counts go to the driver.

play ─▶ keep ─▶ outlines      table ─▶ counts by row      shard ─▶ the columns that the learner needs
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows
from earl.dispatch.rows import Shard
from earl.group import Group, GroupOf, TrajectorySummary, outline
from earl.placement.async_rollout import Ticket
from earl.rollout.pack import learned, num_rows, pack, trajectories_of

Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows in numbers: 16 bytes for each of N."""

    lengths: Counts
    """[N], tokens of each."""
    learned: Counts
    """[N], tokens that are learned from."""
    turns: Counts
    """[N], turns, numbered through from row to row."""
    order: Counts
    """[N], the place of each row's group or episode in the step."""

    @property
    def num_turns(self) -> int:
        """K."""
        return int(self.turns.sum())

    @property
    def first_turns(self) -> NDArray[np.int64]:
        """[N], the number of each row's first turn."""
        return np.cumsum(self.turns, dtype=np.int64) - self.turns

    @classmethod
    def of(cls, rows: Rows, order: Sequence[int] | NDArray[np.int64]) -> Self:
        """Count. Every row has a turn."""
        starts = rows.offsets[:-1]
        marked = (rows.mask, rows.value_mask)
        counts = [np.add.reduceat(own, starts, dtype=np.int32) if len(starts) else starts for own in marked]
        columns = (rows.lengths, *counts, np.asarray(order, np.int32))
        return cls(*(column.astype(np.int32) for column in columns))


class EpisodeStore:
    """The groups and rows of one fragment.

    Args:
        truncated: whether episodes that a token limit cut off are learned from.
    """

    def __init__(self, truncated: bool) -> None:
        self._truncated = truncated
        self._groups: dict[Ticket, Group] = {}
        self._rows: Rows = pack([])

    def keep(self, groups: Mapping[Ticket, Group]) -> dict[Ticket, GroupOf[TrajectorySummary]]:
        """Keep groups; the result is what others have to know of them."""
        self._groups |= groups
        return {ticket: GroupOf(tuple(map(outline, group.trajectories))) for ticket, group in groups.items()}

    def table(self, step: int) -> RowTable:
        """Pack what is learned from of a step's groups, and count."""
        tickets = sorted(ticket for ticket in self._groups if ticket.step == step)
        kept = [(t.number, own) for t in tickets for own in learned([self._groups[t]], self._truncated)]
        order = [number for number, group in kept for own in group.trajectories for _ in range(num_rows(own))]
        return self.pack(pack(trajectories_of(group for _, group in kept)), order)

    def pack(self, rows: Rows, order: Sequence[int] | NDArray[np.int64]) -> RowTable:
        """Keep rows that are packed already."""
        self._rows = rows
        return RowTable.of(rows, order)

    def shard(self, numbers: NDArray[np.int64], columns: Iterable[str]) -> Shard:
        """The rows as they are dispatched.

        Args:
            numbers: of each among those of all fragments, ascending. Turns are counted from each row's first.
        """
        rows, starts = self._rows, np.zeros(len(numbers), np.int64)
        table = RowTable.of(rows, numbers)
        own = {name: getattr(rows, name) for name in columns}
        if "turns" in own:
            own["turns"] = shifted(rows.turns, rows.lengths, -table.first_turns)
        return Shard(numbers, starts, rows.offsets, own)

    def whole(self, tickets: Iterable[Ticket]) -> dict[Ticket, Group]:
        """Groups with their tokens, of those that are here."""
        return {ticket: self._groups[ticket] for ticket in tickets if ticket in self._groups}

    def forget(self, step: int) -> None:
        """Forget a step's groups: they are played again, and must not be learned from twice."""
        self._groups = {ticket: group for ticket, group in self._groups.items() if ticket.step != step}

    def drop(self, version: int) -> None:
        """Forget groups up to this step: they have been learned from."""
        self._groups = {ticket: group for ticket, group in self._groups.items() if ticket.step > version}

    def clear(self) -> None:
        """Forget all groups."""
        self._groups = {}


def shifted(turns: NDArray[np.int32], lengths: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int32]:
    """Turn numbers [T] with `by` [N] added in each row; -1, for no turn, stays.

    Example:
        >>> shifted(np.array([-1, 0, -1, 0]), np.array([2, 2]), np.array([4, 5])).tolist()
        [-1, 4, -1, 5]
    """
    return np.where(turns >= 0, turns + np.repeat(by, lengths), -1).astype(np.int32)
