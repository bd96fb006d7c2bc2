"""Expert parallelism: the experts of a layer are spread over the processes of a group, and tokens travel to them.

    tokens, sorted by expert ─▶ all-to-all ─▶ own experts ─▶ all-to-all ─▶ weighted sum over each token's experts

(GShard, arXiv 2006.16668, without a limit on the tokens of an expert.) The processes of a tensor-parallel group have
the same tokens: each sends its share of them, and the results are put together.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_gather_single, get_rank, get_world_size
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.functional import pad

from earl.engine.sharding.tensor_parallel import STACKED, copied, summed
from earl.parallel.layout import EXPERTS, Axis, chunk


def expert_layers(model: Any) -> dict[str, Any]:
    """The modules that hold a layer's experts, by name."""
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}
    patterns = [re.escape(pattern).replace(r"\*", r"\d+") for pattern, style in plan.items() if style == STACKED]
    wanted = re.compile(rf"(.*\.)?({'|'.join(patterns)})")
    return {name: module for name, module in model.named_modules() if patterns and wanted.fullmatch(name)}


def spread(model: Any, group: ProcessGroup, tp_group: ProcessGroup | None) -> dict[str, Axis]:
    """Leave this process its experts of a meta-device model, and have tokens sent to all. Returns the spread tensors by
    name."""
    axes: dict[str, Axis] = {}
    for name, module in expert_layers(model).items():
        module.num_experts //= get_world_size(group)
        for key, whole in [*module.named_parameters(recurse=False)]:
            own = whole.new_empty((module.num_experts, *whole.shape[1:]))
            setattr(module, key, nn.Parameter(own, whole.requires_grad))
            axes[f"{name}.{key}"] = EXPERTS
        module.forward = SpreadExperts(module.forward, module.num_experts, group, tp_group)
    return axes


@dataclass(frozen=True, slots=True)
class SpreadExperts:
    """The experts of a layer, those of other processes included."""

    compute: Callable[[Tensor, Tensor, Tensor], Tensor]  # own experts
    count: int  # of them
    group: ProcessGroup
    tp_group: ProcessGroup | None  # processes with the same tokens; None: no others have them

    def __call__(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of its experts' results for each token, [N, H].

        Args:
            states: [N, H].
            chosen: [N, K], the experts of each token.
            weights: [N, K], of their results.
        """
        if self.tp_group is None:
            return self._visited(states, chosen, weights)
        start, own = chunk(len(states), get_world_size(self.tp_group), get_rank(self.tp_group))
        mine = slice(start, start + own)
        states, weights = copied(states, self.tp_group), copied(weights, self.tp_group)
        part = self._visited(states[mine], chosen[mine], weights[mine])
        return summed(pad(part, (0, 0, start, len(states) - start - own)), self.tp_group)

    def _visited(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The same as `__call__`, for tokens of this process alone."""
        if get_world_size(self.group) == 1:
            return self._computed(states, chosen, weights)
        order = chosen.flatten().argsort(stable=True)
        sent, taken = self._counts(chosen)
        given, received = [sum(own) for own in sent], [sum(own) for own in taken]
        arrived = all_to_all_single_autograd(states[order // chosen.shape[1]], received, given, self.group)
        numbers = torch.arange(self.count).repeat(len(taken)).repeat_interleave(torch.tensor(taken).flatten())
        results = self._computed(arrived, numbers[:, None].to(chosen.device), weights.new_ones(len(arrived), 1))
        back = all_to_all_single_autograd(results, given, received, self.group)
        placed = torch.empty_like(back).index_copy(0, order, back).view(*chosen.shape, states.shape[1])
        return (placed * weights[..., None]).sum(dim=1)

    def _counts(self, chosen: Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens that this process sends to each expert of each process, and those that it gets from each process for
        each of its own experts. [processes, experts of one]"""
        size = get_world_size(self.group)
        own = chosen.flatten().bincount(minlength=size * self.count)
        every = own.repeat(size)  # where nothing is really sent, all have the same
        all_gather_single(every, own, group=self.group)
        taken = every.view(size, size, self.count)[:, get_rank(self.group)]
        sent: list[list[int]] = own.view(size, self.count).tolist()
        return sent, taken.tolist()

    def _computed(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The results of own experts. Without any token they compute one of zeros, so that FSDP2 has gradients to
        sum."""
        if len(states):
            return self.compute(states, chosen, weights)
        return self.compute(states.new_zeros(1, states.shape[1]), chosen.new_zeros(1, 1), weights.new_zeros(1, 1))[:0]
