"""REINFORCE++ with baseline: the group's mean is the baseline, the batch's deviation the scale (arXiv 2501.03262)."""

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, per_turn, returns_of
from earl.algorithms.loss import clipped_surrogate
from earl.config import AlgorithmConfig
from earl.trajectory import PlayedGroups

EPSILON = 1e-8


class ReinforcePlusPlus:
    """A_i = R_i - mean(R of the group), then normalised over all episodes of the batch."""

    needs_values = False
    needs_baselines = False
    loss = staticmethod(clipped_surrogate)

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        centred = [r - r.mean() for r in map(returns_of, groups)]
        everything = np.concatenate([np.zeros(0), *centred])
        mean, std = (everything.mean(), everything.std()) if len(everything) else (0.0, 1.0)
        episodes = [(r - mean) / (std + EPSILON) for r in centred]
        return Advantages(per_turn(groups, episodes), np.zeros_like(values))
