"""How long a learner's passes take: an engine's steps over prompts alone, and the weights that FSDP fetches meanwhile.

The backward pass is counted as two forward passes.
"""

from dataclasses import dataclass
from math import exp

from earl.parallel.estimate import Estimate
from earl.parallel.hardware import Device
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.coefficients import Values, fitted
from earl.parallel.throughput.parts import parts
from earl.parallel.throughput.room import Engine
from earl.parallel.throughput.step import Batch, step_seconds

BACKWARD = 2.0
"""Forward passes that a backward pass takes as long as: gradients of inputs and of weights."""
FLOAT_BYTES = 2
GRADIENT_BYTES = 4
SPEED = 0.7
"""Of a learner's arithmetic relative to that of an engine that reads prompts: believed, not fitted."""
SPREAD = 0.35
"""Half of the 80 % interval, as a logarithm: the coefficients were fitted to engines that serve, not to learners."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A learner at work on one micro-batch after another.

    Example:
        Passing(shape, device, dp=32, tp=4, hosts=16, tokens=8192, context=8192, across=25e9)
    """

    shape: ModelShape
    device: Device
    dp: int
    tp: int
    hosts: int
    tokens: int
    """Of a micro-batch, all of the same context."""
    context: float
    across: float
    """Bytes per second of a host's link to the others."""


def reference(passing: Passing) -> Estimate:
    """Tokens per GPU and second of forward passes alone."""
    return _estimate(passing, max(_forward_seconds(passing), _fetching_seconds(passing, 1)))


def update(passing: Passing, recompute: bool) -> Estimate:
    """The same of forward and backward passes."""
    passes = 1 + BACKWARD + (1 if recompute else 0)
    given = GRADIENT_BYTES / FLOAT_BYTES if passing.dp > 1 else 0
    return _estimate(passing, max(passes * _forward_seconds(passing), _fetching_seconds(passing, 2 + given)))


def _forward_seconds(passing: Passing) -> float:
    """Of a micro-batch: that of an engine that reads prompts, and the output layer for every token."""
    engine = Engine(passing.shape, passing.device, passing.tp)
    own = fitted().values
    batch = Batch(sequences=0, context=0, prompt_tokens=passing.tokens, prompt_context=passing.context / 2)
    return (step_seconds(engine, batch, own).total + _head_seconds(passing, own)) / SPEED


def _head_seconds(passing: Passing, own: Values) -> float:
    multiplied = 2 * parts(passing.shape).head * passing.tokens / passing.tp
    return multiplied / (passing.device.bf16_flops * own["compute_16"])


def _fetching_seconds(passing: Passing, copies: float) -> float:
    """Of the parts that others hold, once for each pass: into a host over its link, then to each of its GPUs."""
    if passing.dp == 1:
        return 0.0
    size = copies * passing.shape.parameters * FLOAT_BYTES
    link = fitted().values["link"]
    inside = size / passing.tp * (passing.dp - 1) / passing.dp / (passing.device.link_bandwidth * link)
    return max(inside, size * (passing.hosts - 1) / passing.hosts / passing.across)


def _estimate(passing: Passing, seconds: float) -> Estimate:
    value = passing.tokens / seconds / passing.tp
    return Estimate(value, value * exp(-SPREAD), value * exp(SPREAD), "predicted")
