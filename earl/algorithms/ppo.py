"""PPO with a value head and generalised advantage estimation over turns (arXiv 1707.06347, 1506.02438)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from earl.algorithms.base import Advantages, normalised
from earl.algorithms.loss import Clipped
from earl.trajectory import PlayedGroups


def turn_level_gae(
    rewards: NDArray[np.float64], values: NDArray[np.float64], gamma: float, lam: float
) -> NDArray[np.float64]:
    """A_k = δ_k + γλ A_{k+1} with δ_k = r_k + γ V_{k+1} - V_k over the K turns of one episode. After the last, V is 0,
    or the last of K + 1 `values`. A turn is one action of the decision process, however many tokens it has."""
    advantages = np.zeros(len(rewards))
    ahead, following = 0.0, values[-1] if len(values) > len(rewards) else 0.0
    for turn in reversed(range(len(rewards))):
        delta = rewards[turn] + gamma * following - values[turn]
        ahead = delta + gamma * lam * ahead
        advantages[turn], following = ahead, values[turn]
    return advantages


class PPO(Clipped):
    """Turn-level GAE, normalised over the batch; returns = advantages + values before normalising. The value head's
    loss is the mean over turns of value_weight·(V - return)²."""

    needs_values: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per turn."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of turn-level generalised advantage estimation."""
    value_weight: float = Field(0.5, ge=0)
    """Weight of the value loss."""

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        parts, start = [], 0
        real = np.ones(len(values), np.bool_)
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float64)
            own = values[start : start + trajectory.num_values].astype(np.float64)
            parts.append(turn_level_gae(rewards, own, self.gamma, self.gae_lambda))
            start += trajectory.num_values
            real[start - trajectory.bootstrapped : start] = False
        raw, scaled = np.zeros((2, len(values)))
        raw[real] = made = np.concatenate([np.zeros(0), *parts])
        scaled[real] = normalised([made])[0]
        return Advantages(scaled.astype(np.float32), (raw + values).astype(np.float32))

    def value_loss(self, values: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        error = (values - returns).square().sum()
        return error, self.value_weight * error
