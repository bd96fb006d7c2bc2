"""How a learner is spread over processes: whole copies that share the rows; `sharding/` has learners in parts."""

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from earl.batch import bundles
from earl.config import LearnerConfig
from earl.engine.checkpoint_tensors import TensorPart
from earl.engine.lora import adapt, initial_factor, is_factor
from earl.engine.model import Policy, load, recompute
from earl.engine.score import Scorer
from earl.errors import EarlError
from earl.parallel.layout import Axis, Box, Layout

BUCKET_NUMBERS = 1 << 24
"""The most numbers of a message when gradients are summed over processes; a larger gradient gets one of its own."""


class Sums(Protocol):
    rank: int
    size: int

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, bit-identical on each."""


class Ranks:
    """The processes of a learner: here each has a whole copy and a share of the rows. A subclass may give each a part
    of every tensor. All of them call the same methods in the same order."""

    layout = Layout()
    axes: Mapping[str, Axis] = MappingProxyType({})  # of a split tensor, what it is cut along beside FSDP2
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # of tensors that are here in part, the whole shape

    def __init__(self, peers: Sums) -> None:
        self._peers = peers
        self.share, self.shares = peers.rank, peers.size  # which share of the rows this process computes
        self.rank = 0  # the first one saves what all hold alike; a whole copy can save without the others

    def place(self, policy: Policy, learner: LearnerConfig, values: bool) -> Scorer:
        """This process's part of a policy, ready to be trained: the policy's own model. Raises EarlError for a narrow
        dtype: whole copies on CPUs compute in float32."""
        if learner.dtype != "float32":
            raise EarlError(
                f"learner.dtype = {learner.dtype!r} is for a sharded learner, and this run is embedded; "
                "use float32, or placement.kind = 'colocated' or 'disaggregated'"
            )
        adapt(policy.model, learner)
        for name, parameter in policy.model.named_parameters():
            if is_factor(name):
                parameter.data.copy_(initial_factor(name, tuple(parameter.shape)))
        if learner.recompute:
            recompute(policy.model)
        return Scorer(policy.model, values)

    def twin(self, scorer: Scorer) -> Scorer:
        """A frozen copy of the current `place` result."""
        return copy.deepcopy(scorer).requires_grad_(False)

    def frozen(self, path: str, learner: LearnerConfig) -> Scorer:
        """This process's part of another model, which is not trained."""
        return Scorer(load(path).model).requires_grad_(False)

    def add(self, values: Tensor) -> Tensor:
        """The sum over all shares, in host memory."""
        return self._peers.add(values)

    def most(self, count: int) -> int:
        """The largest count of any process, where all have to make the same number of forward passes."""
        return count

    def begin(self, last: bool) -> None:
        """Before each forward pass with gradients; last: before `finish`."""

    def finish(self, parameters: Mapping[str, nn.Parameter], sums: Tensor, max_norm: float) -> tuple[float, Tensor]:
        """Sum gradients and statistics over processes, and clip; returns the norm before clipping, and the sums.
        Statistics travel with gradients; a single process copies none."""
        gradients = [gradient_of(parameter) for parameter in parameters.values()]
        if self.shares > 1:
            summed: list[Tensor] = []
            for bucket in bundles([sums, *gradients], Tensor.numel, BUCKET_NUMBERS):
                message = self._peers.add(torch.cat([one.flatten() for one in bucket]))
                summed += torch.split(message, [one.numel() for one in bucket])
            sums, *gradients = summed
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter.grad = gradient.view_as(parameter)
        return float(nn.utils.clip_grad_norm_(parameters.values(), max_norm)), sums

    def box(self, name: str, tensor: Tensor) -> tuple[Box, tuple[int, ...]]:
        """The box of the parameter `name` on this process, and the shape of the whole."""
        shape = self.shapes.get(name, tuple(tensor.shape))
        return self.layout.box(shape, self.axes.get(name), self.rank), shape

    def local(self, tensor: Tensor) -> Tensor:
        """The memory of this process's part."""
        return tensor

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """The whole parameter."""
        return tensor

    def regrouped(self, parts: Mapping[str, TensorPart], owners: Mapping[str, int]) -> Mapping[str, Tensor]:
        """The tensors of a model that this process owns, whole. parts: what it holds of each."""
        return {name: part.numbers for name, part in parts.items() if owners[name] == self.rank}


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient; zeros where the loss does not use it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
