"""Tensor parallelism: a model whose linear layers are split, by the plan that `transformers` has for its architecture.

The processes of a group compute the same tokens. A layer's rows ("colwise" in the plan) or columns ("rowwise") are split over
them, and the words of embeddings and output layer; everything else they hold alike. Layers hold plain tensors, not DTensors:
two exchanges per block are all that is needed, and every part stays a box of the whole tensor (see layout.py).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from earl.engine.sharding.collectives import copied, summed
from earl.engine.sharding.layout import Layout
from earl.errors import EarlError

COLWISE, ROWWISE, SHARED = "colwise", "rowwise", "replicated_with_grad_allreduce"


def check(model: Any, tp: int) -> None:
    """Raise EarlError for a model that cannot be split over `tp` processes."""
    text = model.config.get_text_config()
    name, plan = type(model).__name__, _plan(model)
    if not plan:
        raise EarlError(f"{name} has no tensor-parallel plan in transformers, so tp = {tp} is refused; use tp = 1")
    if unknown := sorted(set(plan.values()) - {COLWISE, ROWWISE, SHARED}):
        raise EarlError(f"{name} needs {unknown[0]!r} for tensor parallelism, which earl does not do; use tp = 1")
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    for what, count in (("key-value heads", kv_heads), ("attention heads", text.num_attention_heads)):
        if count % tp:
            raise EarlError(
                f"{name} has {count} {what}, which {tp} tensor-parallel processes cannot share evenly; "
                f"choose a tp that divides {count}"
            )


def split(model: Any, layout: Layout, tp_rank: int, group: ProcessGroup) -> dict[str, int]:
    """Replace every split tensor of a model without weights by one of this process's shape, and add the exchanges.

    Returns:
        the axis that each split tensor is cut along, by its name in the model; `partial` in layers says whose
        gradients have to be summed over the group.
    """
    check(model, layout.tp)
    modules = dict(model.named_modules())
    axes: dict[int, int] = {}
    prefix = next(name for name, module in modules.items() if module is model.get_decoder())
    for pattern, style in _plan(model).items():
        regular = re.compile(re.escape(f"{prefix}.{pattern}").replace(r"\*", r"\d+"))
        for name, module in modules.items():
            if regular.fullmatch(name):
                _split_layer(module, style, axes, tp_rank, group)
    _split_embeddings(model.get_input_embeddings(), axes, layout, tp_rank, group)
    for parameter in model.get_output_embeddings().parameters():
        axes[id(parameter)] = 0
    named = {name: axes[id(p)] for name, p in model.named_parameters(remove_duplicate=False) if id(p) in axes}
    _shrink(model, axes, layout, tp_rank)
    return named


def _plan(model: Any) -> Mapping[str, str]:
    return getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}


def _split_layer(module: nn.Module, style: str, axes: dict[int, int], tp_rank: int, group: ProcessGroup) -> None:
    if style == SHARED:  # computes with this process's heads alone, so its gradient is a part of the sum
        for parameter in module.parameters():
            parameter.partial = True  # type: ignore[attr-defined]
        return
    for name, parameter in module.named_parameters():
        _cut(name, parameter, style, axes)
    if style == COLWISE:
        module.register_forward_pre_hook(lambda _, arguments: (copied(arguments[0], group), *arguments[1:]))
    else:
        module.register_forward_hook(_sum_of_rows(tp_rank, group))


def _cut(name: str, parameter: nn.Parameter, style: str, axes: dict[int, int]) -> None:
    """How one tensor of a split layer is cut, adapters' factors (see lora.py) as the layer that they are added to."""
    if style == COLWISE:
        if "lora_A" in name:
            parameter.partial = True  # type: ignore[attr-defined]
        else:
            axes[id(parameter)] = 0
    elif "lora_B" in name:
        parameter.partial = True  # type: ignore[attr-defined]
    elif parameter.dim() > 1:
        axes[id(parameter)] = 1


def _sum_of_rows(tp_rank: int, group: ProcessGroup) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(module: Any, _: Any, output: Tensor) -> Tensor:
        bias = getattr(module, "bias", None)
        if bias is not None and tp_rank:  # in the sum it counts once; its gradient is whole on every process
            output = output - bias.detach()
        return summed(output, group)

    return hook


def _split_embeddings(
    embeddings: nn.Module, axes: dict[int, int], layout: Layout, tp_rank: int, group: ProcessGroup
) -> None:
    """Each process looks up its own words; the others' are zeros that the sum over the group fills."""
    words = int(embeddings.weight.shape[0])  # type: ignore[operator,union-attr]
    box = layout.box((words,), 0, tp_rank) if layout.dp == 1 else Layout(1, layout.tp).box((words,), 0, tp_rank)
    first, count = box.offset[0], box.shape[0]

    def own(tokens: Tensor) -> Tensor:
        return (tokens >= first) & (tokens < first + count)

    def before(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return ((arguments[0] - first).clamp(0, count - 1),)

    def lookup(module: Any, arguments: tuple[Tensor, ...]) -> Tensor:
        states = original(before(module, arguments)[0])
        return summed(states * own(arguments[0])[..., None], group)

    original = embeddings.forward
    embeddings.forward = lambda tokens: lookup(embeddings, (tokens,))  # type: ignore[method-assign]
    axes[id(embeddings.weight)] = 0


def _shrink(model: nn.Module, axes: Mapping[int, int], layout: Layout, tp_rank: int) -> None:
    """Tensors of this process's shape in place of whole ones; what was tied stays tied."""
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            if id(parameter) in axes:
                shape = Layout(1, layout.tp).box(tuple(parameter.shape), axes[id(parameter)], tp_rank).shape
                if id(parameter) not in replaced:
                    empty = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
                    replaced[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
                setattr(module, name, replaced[id(parameter)])
