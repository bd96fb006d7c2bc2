"""Imitation of a teacher: maximum likelihood of its labels, for the warm start (arXiv 2206.01626)."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Stats, TokenInputs
from earl.config import AlgorithmConfig
from earl.trajectory import PlayedGroups


class Imitation:
    """-log π(label), summed over tokens."""

    needs_values = False
    needs_baselines = False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32], config: AlgorithmConfig) -> Advantages:
        return Advantages(np.ones_like(values), np.zeros_like(values))

    def loss(self, inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
        """Cross-entropy; the learner's settings switch entropy bonus and KL off in a warm start."""
        return -inputs.logprobs.sum(), {}
