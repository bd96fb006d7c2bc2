"""RLOO: each episode's baseline is the mean return of the others in its group (arXiv 2402.14740)."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Algorithm, Stats, TokenInputs, per_turn, returns_of
from earl.algorithms.loss import importance_weighted
from earl.trajectory import PlayedGroups


class RLOO(Algorithm):
    """A_i = R_i - mean of the other R_j (equation 9 there), not normalised; REINFORCE without clipping."""

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        # For a group of one the deviation from the mean is 0.
        episodes = [(r - r.mean()) * (len(r) / max(1, len(r) - 1)) for r in map(returns_of, groups)]
        return Advantages(per_turn(groups, episodes), np.zeros_like(values))

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        return importance_weighted(inputs)
