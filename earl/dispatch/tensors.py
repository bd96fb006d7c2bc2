"""Where the tensors of one side lie on one process: torch's tensors on any device, read and filled as bytes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from earl.dispatch.messages import Bytes
from earl.parallel.layout import Slices


class Tensors:
    """Boxes that are there already, or are made when the first bytes of them come.

    Args:
        kinds: the type of the numbers of tensors that are still to be made, by name.
        device: where these are made.
        hosted: whether what is done with goes to host memory.

    Attributes:
        tensors: by name, those in the device's memory.
        away: by name, those that went to host memory.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        kinds: Mapping[str, torch.dtype] | None = None,
        device: torch.device | str = "cpu",
        hosted: bool = False,
    ) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in (tensors or {}).items()}
        self.away: dict[str, Tensor] = {}
        self._kinds, self._device, self._hosted = kinds or {}, device, hosted

    def open(self, name: str, shape: tuple[int, ...]) -> None:
        """Make a tensor, unless it is there."""
        if name not in self.tensors:
            self.tensors[name] = torch.empty(shape, dtype=self._kinds[name], device=self._device)
        assert self.tensors[name].shape == shape, (
            f"{name!r} has the shape {tuple(self.tensors[name].shape)}, not {shape}"
        )

    def close(self, name: str) -> None:
        """Move a tensor to host memory, if that was asked for; on a CPU it is a copy."""
        if self._hosted:
            tensor = self.tensors.pop(name)
            self.away[name] = tensor.to("cpu", copy=True)

    def read(self, name: str, index: Slices, into: Bytes) -> None:
        """Copy a part of a tensor; only this part, whether it lies together or not."""
        part = self.tensors[name][index]
        _numbers(into, part).copy_(part)

    def write(self, name: str, index: Slices, given: Bytes) -> None:
        """Fill a part of a tensor."""
        part = self.tensors[name][index]
        part.copy_(_numbers(given, part))


def _numbers(raw: Bytes, like: Tensor) -> Tensor:
    """Bytes as numbers, in place."""
    own = raw if raw.flags.writeable else raw.copy()  # what lies in shared memory, torch does not take
    return torch.from_numpy(own).view(like.dtype).view(like.shape)
