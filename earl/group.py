"""Groups of episodes of one task, with tokens (`Trajectory`) or without (`TrajectorySummary`).

Group baselines need only `Played`, the properties that both have. The driver sees summaries; tokens stay elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.trajectory import Author, Ended, Outcome, StopReason, Task, Trajectory, Turn


class Played(Protocol):
    """What is known of an episode wherever its tokens are: enough for metrics and advantages. See `Trajectory`."""

    @property
    def task(self) -> Task:
        """Start of the episode."""

    @property
    def seed(self) -> int:
        """See `Trajectory`."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Agent-environment rounds."""

    @property
    def stop(self) -> StopReason:
        """Why it ended."""

    @property
    def outcome(self) -> Outcome:
        """How it ended."""

    @property
    def illegal(self) -> int:
        """See `Trajectory`."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all contexts."""

    @property
    def num_sampled(self) -> int:
        """Tokens sampled by the policy in place."""

    @property
    def version_sum(self) -> int:
        """Sum of the weight versions of the sampled tokens."""

    @property
    def oldest(self) -> int:
        """Oldest of these versions; -1 if no token was sampled."""

    @property
    def author_tokens(self) -> NDArray[np.int64]:
        """Tokens by turn and author, [turns, authors]; tokens after the last reply form a turn of their own."""

    @property
    def reward(self) -> float:
        """The episode's return: its turns' rewards, undiscounted."""

    @property
    def truncated(self) -> bool:
        """Whether a token limit ended the episode."""


@dataclass(frozen=True, slots=True)
class TrajectorySummary(Ended):
    """An episode without its tokens. See `Played` and `Trajectory`."""

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
    return TrajectorySummary(
        task=trajectory.task,
        seed=trajectory.seed,
        turns=trajectory.turns,
        stop=trajectory.stop,
        outcome=trajectory.outcome,
        illegal=trajectory.illegal,
        num_tokens=trajectory.num_tokens,
        num_sampled=trajectory.num_sampled,
        version_sum=trajectory.version_sum,
        oldest=trajectory.oldest,
        author_tokens=trajectory.author_tokens,
    )


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
