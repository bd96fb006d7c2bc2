"""PPO with a value head and generalised advantage estimation over turns (arXiv 1707.06347, 1506.02438)."""

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages
from earl.algorithms.loss import clipped_surrogate
from earl.config import AlgorithmConfig
from earl.trajectory import PlayedGroups

EPSILON = 1e-8


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


class PPO:
    """Turn-level GAE, normalised over the batch; returns = advantages + values before normalising."""

    needs_values = True
    needs_baselines = False
    loss = staticmethod(clipped_surrogate)  # the learner adds the value loss

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        parts, start = [], 0
        real = np.ones(len(values), np.bool_)
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float64)
            own = values[start : start + trajectory.num_values].astype(np.float64)
            parts.append(turn_level_gae(rewards, own, config.gamma, config.gae_lambda))
            start += trajectory.num_values
            real[start - trajectory.bootstrapped : start] = False
        raw, scaled = np.zeros((2, len(values)))
        raw[real] = made = np.concatenate([np.zeros(0), *parts])
        returns = (raw + values).astype(np.float32)
        scaled[real] = (made - made.mean()) / (made.std() + EPSILON) if len(made) else made
        return Advantages(scaled.astype(np.float32), returns)
