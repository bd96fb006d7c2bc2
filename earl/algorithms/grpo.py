"""GRPO: the group's mean is the baseline, its deviation the scale (DeepSeekMath, arXiv 2402.03300)."""

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, per_turn, returns_of
from earl.algorithms.loss import clipped_surrogate
from earl.config import AlgorithmConfig
from earl.trajectory import PlayedGroups

EPSILON = 1e-4  # limits the advantages of a group of nearly equal returns


class GRPO:
    """A_i = (R_i - mean(R)) / (std(R) + ε) over the group (section 4.1.2), the clipped surrogate per token."""

    needs_values = False
    needs_baselines = False
    loss = staticmethod(clipped_surrogate)

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        episodes = [(r - r.mean()) / (r.std() + EPSILON) for r in map(returns_of, groups)]
        return Advantages(per_turn(groups, episodes), np.zeros_like(values))
