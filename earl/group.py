"""Episodes that started alike, from which group baselines are made, with their tokens or without."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.trajectory import Author, Ended, Outcome, StopReason, Task, Trajectory, Turn

# An episode without its tokens, which lie elsewhere: enough to measure a step, and to make advantages.
#
# Trajectory ─▶ outline ─▶ Outline        either is `Played`


class Played(Protocol):
    """What is known of an episode wherever its tokens lie: enough to measure a step, and to make advantages."""

    @property
    def task(self) -> Task:
        """Where it started."""

    @property
    def seed(self) -> int:
        """See `Trajectory`."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Its rounds."""

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
        """All of them."""

    @property
    def num_sampled(self) -> int:
        """Those that the policy sampled at their place."""

    @property
    def version_sum(self) -> int:
        """The versions of the weights that sampled them, added up."""

    @property
    def oldest(self) -> int:
        """The first of these versions; -1 where nothing was sampled."""

    @property
    def author_tokens(self) -> NDArray[np.int64]:
        """[turns, authors], tokens of each turn; what came after the last reply belongs to a turn of its own."""

    @property
    def reward(self) -> float:
        """The episode's return: its turns' rewards, undiscounted."""

    @property
    def truncated(self) -> bool:
        """Whether a token limit ended the episode."""


@dataclass(frozen=True, slots=True)
class TrajectorySummary(Ended):
    """An episode without its tokens, which lie elsewhere. See `Played` and `Trajectory`."""

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
        """Few bytes: one of every episode goes to the driver, and an array takes more by itself than all the rest."""
        values = [getattr(self, field.name) for field in fields(self)]
        return _outline, (*values[:-1], self.author_tokens.tolist())


def _outline(*values: Any) -> TrajectorySummary:
    """What `TrajectorySummary.__reduce__` wrote."""
    return TrajectorySummary(*(*values[:-1], np.array(values[-1], np.int64).reshape(-1, len(Author))))


def outline(trajectory: Trajectory) -> TrajectorySummary:
    """A trajectory without its tokens."""
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
    """Episodes that started alike, for group baselines."""

    trajectories: tuple[P_co, ...]

    @property
    def task(self) -> Task:
        """The task that all of them started from."""
        return self.trajectories[0].task


PlayedGroups = Sequence[GroupOf[Played]]
"""Groups, wherever their tokens lie."""


class Group(GroupOf[Trajectory]):
    """Trajectories that started alike."""

    __slots__ = ()
