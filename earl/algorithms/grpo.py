"""GRPO and the settings that make Dr. GRPO of it: the group's mean is the baseline."""

from typing import Literal

from earl.algorithms.base import Returns, normalised, returns_of
from earl.algorithms.loss import Clipped
from earl.trajectory import PlayedGroups

DEVIATION_EPSILON = 1e-4  # limits the advantages of a group of nearly equal returns


class GRPO(Clipped):
    """A_i = (R_i - mean(R)) / (std(R) + ε) over the group (DeepSeekMath, arXiv 2402.03300, section 4.1.2), the clipped
    surrogate per token.

    Dr. GRPO (arXiv 2503.20783, section 3.2) is the same with scale = "none" and aggregation = "constant": neither the
    group's deviation nor a reply's length weighs an episode.
    """

    scale: Literal["std", "none", "batch"] = "std"
    """What divides the advantage: the group's deviation, nothing, or the deviation over the whole batch."""

    def episode_advantages(self, groups: PlayedGroups) -> list[Returns]:
        return self.scaled([*map(returns_of, groups)])

    def scaled(self, returns: list[Returns]) -> list[Returns]:
        """The advantages of what was returned, group by group."""
        if self.scale == "std":
            return [(r - r.mean()) / (r.std() + DEVIATION_EPSILON) for r in returns]
        centred = [r - r.mean() for r in returns]
        return centred if self.scale == "none" else normalised(centred)
