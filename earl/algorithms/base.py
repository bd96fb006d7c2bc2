"""The seam of an algorithm: groups to advantages, per-token inputs to a loss. Pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.config import AlgorithmConfig
from earl.group import GroupOf, Played, PlayedGroups

Stats = dict[str, Tensor]
"""Sums over tokens of what a loss wants shown; divided by the number of tokens at the end."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """One value per turn, all turns of all trajectories laid end to end, K in all.

    Example:
        two games of 2 and 3 turns -> turns [K = 5]; every action token of a turn takes the turn's advantage
    """

    turns: NDArray[np.float32]  # [K]
    returns: NDArray[np.float32]  # [K], targets of the value head; 0 without one


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What a loss sees of the learned tokens, [M] each."""

    logprobs: Tensor
    """Under the current weights, with gradient."""
    entropy: Tensor
    """Of the current distribution at each token, with gradient."""
    old_logprobs: Tensor
    """The sampler's; where importance is corrected, the learner's as the update began."""
    advantages: Tensor
    reference: Tensor
    """Log-probs of the reference; only read when kl > 0."""


class Algorithm(Protocol):
    """What a file of this folder provides."""

    needs_values: bool
    """Whether a value head is trained and its values are given to `advantages`."""

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        """Advantages of all turns of `groups`; `values` [K] are the value head's before each turn."""

    def loss(self, inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
        """The policy loss summed over tokens, and its statistics. Entropy and KL are added by the learner."""


def per_turn(groups: PlayedGroups, episode_values: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """Repeat one value per episode over its turns: [K].

    Args:
        groups: G groups.
        episode_values: per group, one value per trajectory.
    """
    counts = [len(trajectory.turns) for group in groups for trajectory in group.trajectories]
    flat = np.concatenate([np.zeros(0), *episode_values])
    return np.repeat(flat, counts).astype(np.float32)


def returns_of(group: GroupOf[Played]) -> NDArray[np.float64]:
    """The undiscounted return of each trajectory of a group."""
    return np.array([trajectory.reward for trajectory in group.trajectories], dtype=np.float64)
