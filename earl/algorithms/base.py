"""The interface of an algorithm: groups to advantages, per-token inputs to a loss. Pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.config import AlgorithmConfig
from earl.trajectory import GroupOf, Played, PlayedGroups

Stats = dict[str, Tensor]
"""Sums over tokens of the statistics that a loss reports; divided by the number of tokens at the end."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """One value per turn (`Ended.num_values`), all turns of all trajectories laid end to end, K in all. A turn's tokens
    share its value."""

    turns: NDArray[np.float32]  # [K]
    returns: NDArray[np.float32]  # [K], targets of the value head; 0 without one


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Inputs of a loss for the tokens in it, [M] each."""

    logprobs: Tensor  # under the current weights, with gradient
    entropy: Tensor  # of the current distribution at each token, with gradient
    old_logprobs: Tensor  # of the sampler; with importance correction, of the learner before the update
    advantages: Tensor
    reference: Tensor  # log-probs of the reference; only read when kl > 0


class Algorithm(Protocol):
    needs_values: bool  # whether a value head is trained and its values are given to `advantages`
    needs_baselines: bool  # whether `advantages` is given the running mean return of each role in place of values

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        """Advantages of all turns of `groups`; `values` [K] are the value head's before each turn, or baselines."""

    def loss(self, inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
        """The policy loss summed over tokens, and its statistics. The learner adds entropy and KL."""


def per_turn(groups: PlayedGroups, episode_values: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """Repeat `episode_values` (per group, one value per trajectory) over each episode's turns: [K]."""
    counts = [trajectory.num_values for group in groups for trajectory in group.trajectories]
    flat = np.concatenate([np.zeros(0), *episode_values])
    return np.repeat(flat, counts).astype(np.float32)


def returns_of(group: GroupOf[Played]) -> NDArray[np.float64]:
    return np.array([trajectory.reward for trajectory in group.trajectories], dtype=np.float64)
