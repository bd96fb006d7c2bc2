"""Imitation of a teacher: maximum likelihood of its labels, for the warm start (arXiv 2206.01626)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Algorithm, Stats, TokenInputs
from earl.trajectory import PlayedGroups


def distillation_weight(first: float, student: float, teacher: float) -> float:
    """λ = λ_0 · max(1 - G_S/G_T, 0), and at most λ_0, from the mean returns of student and teacher. The loss of
    reinforcement learning is L_RL + λ · KL(π_T ‖ π_S) in the states that the student comes to, but for a constant, by
    one draw of the teacher in each: the mean over learned tokens of -log π_S(label). (QDagger, arXiv 2206.01626.)"""
    return first * min(1.0, max(0.0, 1 - student / teacher))


class Imitation(Algorithm):
    """-log π(label) of each token."""

    on_samples: ClassVar[bool] = False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        return Advantages(np.ones_like(values), np.zeros_like(values))

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        """Cross-entropy; the learner's settings switch entropy bonus and KL off in a warm start."""
        return -inputs.logprobs, {}
