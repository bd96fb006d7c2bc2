"""Models without weights, and what has to be made of them before they compute."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from earl.engine.attention import ATTENTION


def bare(config: Any) -> Any:
    """The model of a configuration on no device: shapes without numbers."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=ATTENTION, trust_remote_code=False
        ).eval()


def empty(model: Any) -> Any:
    """A model like one without weights, with memory for them; what was tied is tied."""
    made = bare(model.config).to_empty(device="cpu")
    made.tie_weights()
    make_buffers(made, torch.device("cpu"))
    return made


def make_buffers(model: Any, device: torch.device) -> None:
    """Tables that a model computes from its configuration, such as the frequencies of rotary positions."""
    for module in model.modules():
        if [*module.buffers(recurse=False)]:
            made = type(module)(config=model.config.get_text_config())
            for name, buffer in made.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
