"""Which sampler `[sampler] engine = "auto"` takes: the fastest one, by measurement.

Episodes per second of earl's own sampler over those of the fastest other (`transformers.generate`, vLLM eager or
compiled), by `earl bench sampler` on two CPU cores; docs/benchmarks.md has all of it:

    episodes at once      1      16     64     128
    1M parameters         1.3    1.8    2.1    2.3
    5M parameters         1.3    1.6    1.5    1.6

So on CPUs it is earl's own: contexts that are alike are computed once, and nothing goes through a scheduler. On GPUs,
where earl's own does not run, it is vLLM.
"""

import torch


def choose(parameters: int, episodes: int) -> str:
    """`local` or `vllm`, for a model of so many parameters and so many episodes at once."""
    del parameters, episodes  # in no case measured do they change the choice
    return "vllm" if torch.cuda.is_available() else "local"
