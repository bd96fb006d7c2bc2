"""Activation checkpointing: a layer keeps its input only, and computes the rest again in the backward pass."""

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from earl.errors import EarlError


def layers(model: Any) -> list[nn.Module]:
    """The blocks that a transformer repeats.

    Raises:
        EarlError: for an architecture that does not say what they are.
    """
    repeated = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in repeated]
    if not found:
        raise EarlError(
            f"{type(model).__name__} does not say which layers it repeats, so it can be neither sharded nor "
            "recomputed; use another family, such as Qwen3 or Llama"
        )
    return found


def recompute(model: Any) -> None:
    """Make every layer of a model forget its activations."""
    for layer in layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
