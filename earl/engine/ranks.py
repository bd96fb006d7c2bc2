"""How a learner is spread over processes: the seam, and its simplest kind, whole copies that share the rows."""

import copy
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from earl.config import LearnerConfig
from earl.engine.lora import adapt, drawn, is_factor
from earl.engine.model import Policy, recompute
from earl.engine.score import Scorer
from earl.errors import EarlError
from earl.parallel.layout import Box, Layout, whole

BUCKET_NUMBERS = 1 << 24
"""Gradients are added over processes in messages of about so many numbers."""


class Sums(Protocol):
    """How processes add up what each computed."""

    rank: int
    size: int

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same to the bit on each."""


class Ranks(Protocol):
    """What the learner leaves to how it is spread. Every process calls the same methods in the same order."""

    rank: int
    """Of this process, among all that the learner has."""
    share: int
    """Which share of the rows this process computes."""
    shares: int
    lockstep: bool
    """Whether all processes have to make the same number of forward passes."""
    saver: bool
    """Whether this process writes what all of them have alike."""
    layout: Layout
    """How the processes share each tensor."""

    def place(self, policy: Policy, learner: LearnerConfig, values: bool) -> Scorer:
        """This process's part of a policy, ready to be trained."""

    def twin(self, scorer: Scorer) -> Scorer:
        """A frozen copy of what `place` gave, as it is now."""

    def add(self, values: Tensor) -> Tensor:
        """The sum over all shares, in host memory."""

    def most(self, count: int) -> int:
        """The largest count of any process, where all have to make as many forward passes as the one that has most."""

    def finish(self, parameters: Mapping[str, nn.Parameter], sums: Tensor, max_norm: float) -> tuple[float, Tensor]:
        """Add gradients and statistics over processes, and clip; the gradient's norm before, and the sums."""

    def box(self, name: str, tensor: Tensor) -> tuple[Box, tuple[int, ...]]:
        """Which part of the parameter `name` this process holds, and the shape of the whole."""

    def keeps(self, name: str) -> bool:
        """Whether this process is the one that saves its part, of those that hold the same."""

    def axis(self, name: str) -> int | None:
        """The axis that tensor parallelism splits the tensor `name` along."""

    def local(self, tensor: Tensor) -> Tensor:
        """The memory of this process's part."""

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """The whole parameter."""


class Replicas:
    """Every process holds the same weights and computes its share of gradients."""

    lockstep = False
    layout = Layout()

    def __init__(self, peers: Sums) -> None:
        self._peers = peers
        self.share, self.shares = peers.rank, peers.size
        self.rank, self.saver = 0, True  # one of them saves, and needs no other for it

    def place(self, policy: Policy, learner: LearnerConfig, values: bool) -> Scorer:
        """The policy's own model. Raises EarlError for a narrow type: whole copies on CPUs compute in 32 bits."""
        if learner.dtype != "float32":
            raise EarlError(
                f"learner.dtype = {learner.dtype!r} is for a sharded learner, and this run is embedded; "
                "use float32, or placement.kind = 'colocated' or 'disaggregated'"
            )
        adapt(policy.model, learner)
        for name, parameter in policy.model.named_parameters():
            if is_factor(name):
                parameter.data.copy_(drawn(name, tuple(parameter.shape)))
        if learner.recompute:
            recompute(policy.model)
        return Scorer(policy.model, values)

    def twin(self, scorer: Scorer) -> Scorer:
        """A deep copy."""
        return copy.deepcopy(scorer).requires_grad_(False)

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._peers.add(values)

    def most(self, count: int) -> int:
        """Its own: whole copies wait for each other in the sum alone."""
        return count

    def finish(self, parameters: Mapping[str, nn.Parameter], sums: Tensor, max_norm: float) -> tuple[float, Tensor]:
        """Statistics travel with the first gradients. Who is alone copies none."""
        if self.shares == 1:
            for parameter in parameters.values():
                if parameter.grad is None:  # it had no part in the loss
                    parameter.grad = torch.zeros_like(parameter)
            return float(nn.utils.clip_grad_norm_(parameters.values(), max_norm)), sums
        totals: Tensor | None = None
        for bucket in _buckets([*parameters.values()]):
            pieces = [p.grad.flatten() if p.grad is not None else p.new_zeros(p.numel()) for p in bucket]
            if totals is None:
                pieces.insert(0, sums)
            parts = [*torch.split(self._peers.add(torch.cat(pieces)), [piece.numel() for piece in pieces])]
            if totals is None:
                totals = parts.pop(0)
            for parameter, gradient in zip(bucket, parts, strict=True):
                parameter.grad = gradient.view_as(parameter)
        assert totals is not None
        return float(nn.utils.clip_grad_norm_(parameters.values(), max_norm)), totals

    def box(self, name: str, tensor: Tensor) -> tuple[Box, tuple[int, ...]]:  # noqa: ARG002
        """All of it."""
        return whole(tensor.shape), tuple(tensor.shape)

    def keeps(self, name: str) -> bool:  # noqa: ARG002
        """The one who saves saves everything."""
        return True

    def axis(self, name: str) -> int | None:  # noqa: ARG002
        """None: nothing is split."""
        return None

    def local(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gathered(self, name: str, tensor: Tensor) -> Tensor:  # noqa: ARG002
        """The tensor itself."""
        return tensor


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbours of together at least BUCKET_NUMBERS numbers, but for the last ones."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(own.numel() for own in bucket) >= BUCKET_NUMBERS:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
