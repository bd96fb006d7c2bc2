"""CISPO: clips the importance weight, not the update, so that every token keeps its gradient."""

from pydantic import Field
from torch import Tensor

from earl.algorithms.base import Stats, TokenInputs
from earl.algorithms.grpo import GRPO
from earl.algorithms.loss import clipped_reinforce


class CISPO(GRPO):
    """-sg(clip(π/π_old, 1 - ε, 1 + ε_high))·A·log π, with GRPO's advantage and the mean over tokens (MiniMax-M1,
    arXiv 2506.13585, equations 4 and 5). sg: without gradient."""

    clip: float = Field(1.0, gt=0)
    """The distance of the lower bound from 1; at 1 there is none, as in the paper."""
    clip_high: float | None = Field(0.28, gt=0)
    """The distance of the upper bound from 1; absent: as clip."""
    dual_clip: None = None
    """Has no use here."""

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        return clipped_reinforce(inputs, self.bounds)
