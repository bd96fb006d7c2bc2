"""Imitation of a teacher: maximum likelihood of its labels, for the warm start (arXiv 2206.01626)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Algorithm, Stats, TokenInputs
from earl.trajectory import PlayedGroups


class Imitation(Algorithm):
    """-log π(label) of each token."""

    on_samples: ClassVar[bool] = False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        return Advantages(np.ones_like(values), np.zeros_like(values))

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        """Cross-entropy; the learner's settings switch entropy bonus and KL off in a warm start."""
        return -inputs.logprobs, {}
