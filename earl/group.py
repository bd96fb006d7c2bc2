"""Groups of episodes of one task, with tokens (`Trajectory`) or without (`TrajectorySummary`).

Group baselines need only the properties that both have. The driver sees summaries; tokens stay elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.trajectory import Author, Ended, Outcome, StopReason, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class TrajectorySummary(Ended):
    """An episode without its tokens; see the properties of `Trajectory`."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    stop: StopReason
    outcome: Outcome
    illegal: int
    num_tokens: int
    num_sampled: int
    version_sum: int
    oldest: int
    author_tokens: NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle the array as a list: one summary per episode goes to the driver, and a pickled array is larger."""
        values = [getattr(self, field.name) for field in fields(self)]
        return _outline, (*values[:-1], self.author_tokens.tolist())


def _outline(*values: Any) -> TrajectorySummary:
    return TrajectorySummary(*(*values[:-1], np.array(values[-1], np.int64).reshape(-1, len(Author))))


def outline(trajectory: Trajectory) -> TrajectorySummary:
    return TrajectorySummary(*(getattr(trajectory, field.name) for field in fields(TrajectorySummary)))


Played = Trajectory | TrajectorySummary
"""What is known of an episode wherever its tokens are: enough for metrics and advantages."""

P_co = TypeVar("P_co", bound=Played, covariant=True)


@dataclass(frozen=True, slots=True)
class GroupOf(Generic[P_co]):
    """Episodes of one task, for group baselines."""

    trajectories: tuple[P_co, ...]

    @property
    def task(self) -> Task:
        return self.trajectories[0].task


PlayedGroups = Sequence[GroupOf[Played]]


class Group(GroupOf[Trajectory]):
    __slots__ = ()
