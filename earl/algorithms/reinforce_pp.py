"""REINFORCE++: the batch's deviation is the scale, with or without a group baseline (arXiv 2501.03262)."""

from typing import Literal

from earl.algorithms.base import Returns, normalised, returns_of
from earl.algorithms.loss import Clipped
from earl.trajectory import PlayedGroups


class ReinforcePlusPlus(Clipped):
    """A_i = R_i - b, then less the mean and divided by the deviation over all episodes of the batch. b is the group's
    mean (REINFORCE++-baseline), or 0 (REINFORCE++)."""

    baseline: Literal["group", "none"] = "group"
    """What is taken off a return before the batch is normalised: the mean of its group, or nothing."""

    def episode_advantages(self, groups: PlayedGroups) -> list[Returns]:
        return normalised([r - r.mean() if self.baseline == "group" else r for r in map(returns_of, groups)])
