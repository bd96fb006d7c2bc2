"""PPO with a value head and generalised advantage estimation over turns (arXiv 1707.06347, 1506.02438)."""

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages
from earl.algorithms.loss import clipped_surrogate
from earl.config import AlgorithmConfig
from earl.group import PlayedGroups

EPSILON = 1e-8


def turn_level_gae(
    rewards: NDArray[np.float64], values: NDArray[np.float64], gamma: float, lam: float
) -> NDArray[np.float64]:
    """A_k = δ_k + γλ A_{k+1} with δ_k = r_k + γ V_{k+1} - V_k over the turns of one episode, V = 0 after the last.
    A turn is one action of the decision process, however many tokens it has."""
    advantages = np.zeros(len(rewards))
    ahead = following = 0.0
    for turn in reversed(range(len(rewards))):
        delta = rewards[turn] + gamma * following - values[turn]
        ahead = delta + gamma * lam * ahead
        advantages[turn], following = ahead, values[turn]
    return advantages


class PPO:
    """Turn-level GAE, normalised over the batch; returns = advantages + values before normalising."""

    needs_values = True
    loss = staticmethod(clipped_surrogate)  # the learner adds the value loss

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        parts, start = [], 0
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float64)
            own = values[start : start + len(rewards)].astype(np.float64)
            parts.append(turn_level_gae(rewards, own, config.gamma, config.gae_lambda))
            start += len(rewards)
        raw = np.concatenate([np.zeros(0), *parts])
        returns = (raw + values).astype(np.float32)
        scaled = (raw - raw.mean()) / (raw.std() + EPSILON) if len(raw) else raw
        return Advantages(scaled.astype(np.float32), returns)
