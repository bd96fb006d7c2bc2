"""RLOO: each episode's baseline is the mean return of the others in its group (arXiv 2402.14740)."""

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, per_turn, returns_of
from earl.algorithms.loss import importance_weighted
from earl.config import AlgorithmConfig
from earl.trajectory import PlayedGroups


class RLOO:
    """A_i = R_i - mean of the other R_j (equation 9 there), not normalised; REINFORCE without clipping."""

    needs_values = False
    needs_baselines = False
    loss = staticmethod(importance_weighted)

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        # For a group of one the deviation from the mean is 0.
        episodes = [(r - r.mean()) * (len(r) / max(1, len(r) - 1)) for r in map(returns_of, groups)]
        return Advantages(per_turn(groups, episodes), np.zeros_like(values))
