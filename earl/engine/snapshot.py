"""What one process writes of a learner, copied: the learner goes on while it is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from earl.engine.folder import write_model
from earl.engine.stored import Part, check_finite, write

STATE = "learner"
"""The folder of moments, value head and adapters: inference engines read every safetensors file beside config.json."""
REFERENCE = "reference"
"""The folder of the model that KL divergence is measured to, once there is one, and of what adapters are added to."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tensors in host memory that nobody changes any more."""

    rank: int
    parts: Mapping[str, Part]
    """Of moments, value head and adapters."""
    models: Mapping[str, Mapping[str, Tensor]]
    """Whole models by their folder; of one process alone."""
    model: Any
    """For the configuration of all of them."""
    tokenizer: Any

    def write(self, folder: Path) -> None:
        """Write all of it. Other processes may write theirs into the same folder meanwhile.

        Raises:
            EarlError: when a number is not finite; nothing is written then.
        """
        for tensors in (*self.models.values(), {name: part.numbers for name, part in self.parts.items()}):
            for name, tensor in tensors.items():
                check_finite(name, tensor, f"{folder} is not saved, earlier checkpoints stay: resume from them")
        for name, tensors in self.models.items():
            write_model(folder / name, self.model, tensors)
        if self.models:
            self.tokenizer.save_pretrained(folder)
        (folder / STATE).mkdir(parents=True, exist_ok=True)
        write(folder / STATE / f"rank-{self.rank:05}.safetensors", self.parts)


def copied(tensor: Tensor) -> Tensor:
    """A copy in host memory, whatever the tensor becomes."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
