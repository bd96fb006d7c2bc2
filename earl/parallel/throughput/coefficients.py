"""What rooflines leave open: a few efficiencies and overheads, each with what is believed before it is fitted.

All are positive, and believed and fitted as logarithms. `earl bench calibration --write` stores the fitted ones with
their covariance in coefficients.toml.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

FILE = "coefficients.toml"
Values = Mapping[str, float]
"""A value of every coefficient by its name."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a coefficient before it is fitted."""

    value: float
    spread: float
    """Standard deviation of its logarithm."""
    meaning: str


PRIORS: dict[str, Prior] = {
    "memory": Prior(0.85, 0.10, "share of the memory bandwidth at which weights are read"),
    "kv": Prior(0.80, 0.15, "share of the memory bandwidth at which keys and values are read"),
    "heads": Prior(0.10, 0.60, "more time for that at every halving of a device's heads below 8, as a share"),
    "compute_16": Prior(0.75, 0.10, "share of the peak at which 16-bit weights are multiplied"),
    "compute_8": Prior(0.60, 0.20, "share of the peak at which narrower weights are multiplied"),
    "tile": Prior(4e5, 0.25, "numbers of an output that idle multipliers could have made, in each matrix product"),
    "experts": Prior(0.70, 0.30, "the same share for experts of a mixture, relative to dense layers"),
    "attention": Prior(0.50, 0.25, "share of the peak that attention over prompts reaches"),
    "link": Prior(0.70, 0.15, "share of the link at which large all-reduces run"),
    "all_reduce": Prior(10e-6, 0.30, "seconds that every all-reduce takes at least"),
    "all_reduce_large": Prior(25e-6, 0.30, "seconds that a large one takes besides, to be cut and pipelined"),
    "passes": Prior(12.0, 0.40, "times that a layer's activations travel to memory and back"),
    "layer": Prior(25e-6, 0.30, "seconds between the kernels of a layer"),
    "step": Prior(1.0e-3, 0.60, "seconds between two steps"),
    "sequence": Prior(4e-6, 0.80, "seconds a step for every sequence: scheduling and sampling"),
    "reserve": Prior(1.0, 0.25, "workspace that an engine keeps, relative to what shapes suggest"),
    "chat_longest": Prior(4.0, 0.30, "longest reply of the chats that were measured with, relative to their mean"),
    "triton_overhead": Prior(1.5, 0.50, "time between steps of TensorRT-LLM 0.14 behind Triton, relative to offline"),
    "vllm_0_5_overhead": Prior(5.0, 0.50, "time between steps of vLLM 0.5, relative to TensorRT-LLM offline"),
    "vllm_overhead": Prior(2.0, 0.40, "time between steps of today's vLLM, relative: nothing in the tables tells"),
}


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Fitted values and how sure they are."""

    values: Values
    covariance: NDArray[np.float64]
    """Of the logarithms, in the order of `values`. [C, C]"""
    spread: float
    """Standard deviation of the logarithm of what was measured about what is predicted, where it was not fitted to."""


def prior_values() -> Values:
    """Every coefficient as it is believed before it is fitted."""
    return {name: prior.value for name, prior in PRIORS.items()}


@cache
def fitted() -> Coefficients:
    """The stored coefficients."""
    stored = tomllib.loads(files("earl.parallel.throughput").joinpath(FILE).read_text(encoding="utf-8"))
    return Coefficients(stored["values"], np.array(stored["covariance"]), stored["spread"])
