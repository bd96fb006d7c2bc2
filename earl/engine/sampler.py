"""The seam between the loop and whatever completes prompts."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from earl.rollout.episode import Completion, Prompt


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights; whatever was computed with the old ones is forgotten."""
