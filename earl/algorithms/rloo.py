"""RLOO: each episode's baseline is the mean return of the others in its group (arXiv 2402.14740)."""

from torch import Tensor

from earl.algorithms.base import Algorithm, Returns, Stats, TokenInputs, returns_of
from earl.algorithms.loss import importance_weighted
from earl.trajectory import PlayedGroups


class RLOO(Algorithm):
    """A_i = R_i - mean of the other R_j (equation 9 there), not normalised; REINFORCE without clipping."""

    def episode_advantages(self, groups: PlayedGroups) -> list[Returns]:
        # For a group of one the deviation from the mean is 0.
        return [(r - r.mean()) * (len(r) / max(1, len(r) - 1)) for r in map(returns_of, groups)]

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        return importance_weighted(inputs)
