"""Role-conditioned advantages: a running baseline for each seat of a game (SPIRAL, arXiv 2506.24119)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, per_turn, returns_of
from earl.algorithms.loss import Clipped
from earl.trajectory import GroupOf, Played, PlayedGroups

DECAY = 0.95

Baselines = Mapping[str, float]
"""The running mean return of each role; 0 for one that was not played yet."""
NO_BASELINES: Baselines = MappingProxyType({})


def role(group: GroupOf[Played]) -> str:
    """One for all games of a seat against the policy itself, wherever they begin."""
    opponent = "self" if group.task.opponent.startswith("self:") else group.task.opponent
    return f"{group.task.env} {opponent} {group.task.seat}"


def baselines_after(baselines: Baselines, groups: PlayedGroups) -> dict[str, float]:
    """b ← DECAY·b + (1 - DECAY)·R for the return of every episode, in order (Algorithm 1 there)."""
    moved = dict(baselines)
    for group in groups:
        for earned in returns_of(group).tolist():
            moved[role(group)] = DECAY * moved.get(role(group), 0.0) + (1 - DECAY) * earned
    return moved


def turn_baselines(baselines: Baselines, groups: PlayedGroups) -> NDArray[np.float32]:
    """The baseline of each turn's role, [K]."""
    return per_turn(groups, [np.full(len(group.trajectories), baselines.get(role(group), 0.0)) for group in groups])


class RAE(Clipped):
    """A_i = R_i - b of its role, as it was before the step; the clipped surrogate per token."""

    needs_baselines: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        return Advantages(per_turn(groups, [*map(returns_of, groups)]) - values, np.zeros_like(values))
