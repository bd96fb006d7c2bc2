"""Low-rank adapters (LoRA, arXiv 2106.09685): two thin matrices are trained beside every frozen linear layer."""

from typing import Any

import torch
from torch import Tensor, nn

from earl.config import LearnerConfig
from earl.errors import EarlError
from earl.seeds import derive

FACTORS = (".lora_A.default.weight", ".lora_B.default.weight")
INSIDE = ".base_layer"
"""Part of the name of a tensor whose layer has adapters."""


def adapt(model: Any, learner: LearnerConfig) -> None:
    """Freeze a model and add adapters to its linear layers, if configured; at first they change nothing. Raises
    EarlError when peft is not installed, or the model has no linear layers."""
    if not learner.lora_rank:
        return
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise EarlError("learner.lora_rank needs peft, which is not installed: pip install 'earl[lora]'") from error
    last, modules = model.get_output_embeddings(), model.named_modules()
    linear = [name for name, module in modules if isinstance(module, nn.Linear) and module is not last]
    if not linear:
        raise EarlError(f"{type(model).__name__} has no linear layers that adapters fit; set learner.lora_rank to 0")
    targets, rank = sorted({name.rpartition(".")[2] for name in linear}), learner.lora_rank
    config = LoraConfig(r=rank, lora_alpha=learner.lora_alpha, target_modules=targets, lora_dropout=0.0)
    inject_adapter_in_model(config, model)


def base_name(name: str) -> str:
    """A tensor's name in the model without adapters."""
    return name.replace(INSIDE + ".", ".")


def is_factor(name: str) -> bool:
    return name.endswith(FACTORS)


def initial_factor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Initial factor: the second is zero, so that nothing changes at first, the first is drawn as peft does."""
    if name.endswith(FACTORS[1]):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive(0, name) % (1 << 63))
    drawn_factor: Tensor = (2 * torch.rand(shape, generator=generator) - 1) / shape[1] ** 0.5
    return drawn_factor


def factor_names(name: str) -> tuple[str, str] | None:
    """The names of the adapter's two factors for the weight `name`; None where it has no adapter."""
    layer, inside, kind = name.rpartition(INSIDE + ".")
    return (layer + FACTORS[0], layer + FACTORS[1]) if inside and kind == "weight" else None


def merge(weight: Tensor, first: Tensor, second: Tensor, learner: LearnerConfig) -> Tensor:
    """The weight that acts as a frozen one [out, in] with its factors [rank, in] and [out, rank]."""
    result: Tensor = weight + (learner.lora_alpha / learner.lora_rank) * (second @ first)
    return result
