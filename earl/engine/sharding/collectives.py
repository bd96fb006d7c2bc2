"""The two exchanges of tensor parallelism (Megatron-LM, arXiv 1909.08053, section 3), each the other's gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_reduce


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ARG004
        return _sum(states, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradients[0], None


def _sum(states: Tensor, group: ProcessGroup) -> Tensor:
    total = states.contiguous().clone()
    all_reduce(total, group=group)
    return total


def copied(states: Tensor, group: ProcessGroup | None) -> Tensor:
    """The same states for every process of the group; their gradients are summed over it."""
    if group is None:
        return states
    result: Tensor = _Copied.apply(states, group)  # type: ignore[no-untyped-call]
    return result


def summed(states: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum of every process's states; the gradient of the sum is each one's own."""
    if group is None:
        return states
    result: Tensor = _Summed.apply(states, group)  # type: ignore[no-untyped-call]
    return result
