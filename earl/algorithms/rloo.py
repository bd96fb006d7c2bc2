"""RLOO: each episode's baseline is the mean return of the others in its group (arXiv 2402.14740)."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Stats, TokenInputs, per_turn, returns_of
from earl.algorithms.loss import importance_weighted
from earl.config import AlgorithmConfig
from earl.group import PlayedGroups


def leave_one_out(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """R_i minus the mean of the other returns, [G]; zeros for a group of one."""
    others = max(1, len(returns) - 1)
    centred: NDArray[np.float64] = returns - returns.mean()
    return centred * (len(returns) / others)


class RLOO:
    """A_i = R_i - mean of the other R_j (equation 9 there), not normalised; REINFORCE without clipping."""

    needs_values = False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        del config
        episodes = [leave_one_out(returns_of(group)) for group in groups]
        return Advantages(per_turn(groups, episodes), np.zeros_like(values))

    def loss(self, inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
        del config
        return importance_weighted(inputs)
