"""Episodes that started alike, from which group baselines are made, with their tokens or without."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from earl.outline import Played
from earl.trajectory import Task, Trajectory

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
