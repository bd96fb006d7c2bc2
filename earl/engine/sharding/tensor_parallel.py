"""Tensor parallelism: splits a model's linear layers by the plan that `transformers` has for its architecture.

The processes of a group compute the same tokens. Rows ("colwise" in the plan) or columns ("rowwise") of layers, and the
vocabulary of embeddings and output layer, are split over them; other tensors are equal on all. Layers hold plain
tensors, not DTensors: two exchanges per block suffice, and every part is a box of the whole tensor (`layout.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_gather, all_reduce, get_world_size

from earl.parallel.layout import Layout

# The two exchanges of tensor parallelism (Megatron-LM, arXiv 1909.08053, section 3), each the other's gradient.


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
    """Identity in the forward pass; gradients are summed over the group."""
    if group is not None and states.requires_grad:
        states = states.view_as(states)  # a hook on the tensor itself would sum the gradients of other uses too
        states.register_hook(partial(_sum, group=group))  # type: ignore[no-untyped-call]
    return states


def summed(states: Tensor, group: ProcessGroup | None) -> Tensor:
    """Sum over the group in the forward pass; the gradient passes through."""
    if group is None:
        return states
    result: Tensor = _Summed.apply(states, group)  # type: ignore[no-untyped-call]
    return result


def gathered(part: Tensor, axis: int, length: int, group: ProcessGroup) -> Tensor:
    """The whole of a tensor that is cut along an axis of this length; parts may be smaller at the end, or empty."""
    parts = get_world_size(group)
    padded = part.new_zeros([*part.shape[:axis], -(-length // parts), *part.shape[axis + 1 :]])
    padded.narrow(axis, 0, part.shape[axis]).copy_(part)
    every = [torch.empty_like(padded) for _ in range(parts)]
    all_gather(every, padded, group=group)
    return torch.cat(every, dim=axis).narrow(axis, 0, length)


COLWISE, ROWWISE, SHARED = "colwise", "rowwise", "replicated_with_grad_allreduce"
STACKED = "moe_tp_experts"  # of a module that holds the experts of a layer, stacked along the first axis
PARTIAL_FACTORS = {(COLWISE, True, False), (ROWWISE, False, True)}
"""Adapters: one factor is split as its layer is, the other one is whole: (style, is first factor, is second factor)."""


def indivisible(model: Any) -> str:
    """Why the layers of a model's family cannot be split, whatever the number of processes; empty if they can."""
    name, plan = type(model).__name__, _plan(model)
    if not plan:
        return f"{name} has no tensor-parallel plan in transformers; use tp = 1"
    if unknown := sorted(set(plan.values()) - {COLWISE, ROWWISE, SHARED}):
        return f"{name} needs {unknown[0]!r} for tensor parallelism, which earl does not do; use tp = 1"
    return ""


@dataclass(frozen=True, slots=True)
class Splits:
    """How tensor parallelism splits a model's tensors, by name; a tied tensor has all its names."""

    axes: Mapping[str, int]  # the axis that a split tensor is cut along
    partial: frozenset[str]
    """Tensors that are not split, but whose gradient has to be summed over the group."""


def split(model: Any, tp: int, tp_rank: int, group: ProcessGroup | None) -> Splits:
    """Replace every split tensor of a meta-device model by one of this process's shape, and add the exchanges. The
    caller has seen to it that the model can be split so (`earl.parallel.layout.check_split`)."""
    cut = _Cut(Layout(1, tp), tp_rank, group)
    modules = dict(model.named_modules())
    prefix = next(name for name, module in modules.items() if module is model.get_decoder())
    for pattern, style in _plan(model).items():
        regular = re.compile(re.escape(f"{prefix}.{pattern}").replace(r"\*", r"\d+"))
        for name in filter(regular.fullmatch, modules):
            cut.layer(modules[name], style)
    cut.embeddings(model.get_input_embeddings())
    cut.axes |= {id(parameter): 0 for parameter in model.get_output_embeddings().parameters()}
    named = [*model.named_parameters(remove_duplicate=False)]
    splits = Splits(
        {name: cut.axes[id(parameter)] for name, parameter in named if id(parameter) in cut.axes},
        frozenset(name for name, parameter in named if id(parameter) in cut.partial),
    )
    cut.shrink(model)
    return splits


def _plan(model: Any) -> dict[str, str]:
    """Style by name pattern; without embeddings, which are always split by vocabulary, and experts, which are not split
    but spread (`expert_parallel.py`)."""
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}
    experts = tuple(pattern for pattern, style in plan.items() if style == STACKED)
    dense = {pattern: style for pattern, style in plan.items() if not pattern.startswith(experts)}
    return {pattern: style for pattern, style in dense.items() if not style.startswith("embedding_")}


class _Cut:
    """A model being split; tensors are tracked by identity, so that tied ones are split once."""

    def __init__(self, layout: Layout, tp_rank: int, group: ProcessGroup | None) -> None:
        self.layout, self.rank, self.group = layout, tp_rank, group
        self.axes: dict[int, int] = {}
        self.partial: set[int] = set()

    def layer(self, module: nn.Module, style: str) -> None:
        """Split a layer with its adapters, or mark one that computes only with this process's heads."""
        for name, parameter in module.named_parameters():
            if style == SHARED or (style, "lora_A" in name, "lora_B" in name) in PARTIAL_FACTORS:
                self.partial.add(id(parameter))
            elif style == COLWISE:
                self.axes[id(parameter)] = 0
            elif parameter.dim() > 1:
                self.axes[id(parameter)] = 1
        if style == COLWISE:
            module.register_forward_pre_hook(lambda _, given: (copied(given[0], self.group), *given[1:]))
        elif style == ROWWISE:
            module.register_forward_hook(self._sum)

    def _sum(self, module: Any, _: Any, output: Tensor) -> Tensor:
        bias = getattr(module, "bias", None)
        if bias is not None and self.rank:  # add the bias once to the sum; its gradient is whole on every process
            output = output - bias.detach()
        return summed(output, self.group)

    def embeddings(self, module: Any) -> None:
        """Each process looks up its part of the vocabulary; other tokens contribute zeros."""
        box = self.layout.box(module.weight.shape, 0, self.rank)
        first, count = box.offset[0], box.shape[0]
        look_up = module.forward

        def forward(tokens: Tensor) -> Tensor:
            own = (tokens >= first) & (tokens < first + count)
            return summed(look_up((tokens - first).clamp(0, count - 1)) * own[..., None], self.group)

        module.forward = forward
        self.axes[id(module.weight)] = 0

    def shrink(self, model: nn.Module) -> None:
        """Replace whole tensors by ones of this process's shape; tied tensors stay tied."""
        replaced: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, whole in [*module.named_parameters(recurse=False)]:
                if id(whole) in self.axes:
                    shape = self.layout.box(whole.shape, self.axes[id(whole)], self.rank).shape
                    own = nn.Parameter(torch.empty(shape, dtype=whole.dtype, device=whole.device), whole.requires_grad)
                    setattr(module, name, replaced.setdefault(id(whole), own))
