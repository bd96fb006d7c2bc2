"""The seam between the loop and whatever completes prompts."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from earl.engine.probe import Probe
from earl.parallel.layout import Box
from earl.rollout.prompt import Completion, Prompt


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights; whatever was computed with the old ones is forgotten.

        Args:
            probe: what the learner's weights say of a prompt, for samplers that check themselves after loading;
                absent: they compute it from `weights`.
        """

    def sleep(self) -> None:
        """Free the device's memory for somebody else, where the device has its own."""

    def wake(self) -> None:
        """Take it back."""


@runtime_checkable
class InBoxes(Protocol):
    """Weights of which a part of a tensor can be had without the rest."""

    def part(self, name: str, box: Box) -> Tensor:
        """What lies in a box of the tensor `name`."""


@runtime_checkable
class InWaves(Protocol):
    """A sampler whose prompts wait for each other where memory is short."""

    def most_waves(self) -> int | None:
        """The most batches that one call took since this was last asked; None where room is not bounded."""


@runtime_checkable
class Closes(Protocol):
    """A sampler that holds memory in this process."""

    def close(self) -> None:
        """Let go of it at once; nothing is asked any more."""
