"""How fast a rollout runs on one copy of a serving engine: how many responses at once, in how many waves, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log

import numpy as np

from earl.parallel.hardware import GIB
from earl.parallel.memory import Estimate
from earl.parallel.throughput.step import Coefficients, Engine, StepLoad, StepSeconds, Values, average_step, fitted

INTERVAL = 1.2816
"""Standard deviations to either side that hold 80 %."""
NUDGE = 5e-3
"""Of a coefficient's logarithm, for derivatives."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one copy of an engine is given at once.

    Example:
        Workload(prompt_tokens=512, reply_tokens=7680, responses=32)
    """

    prompt_tokens: float
    """Of a response; what is read, not written. 0: the decode phase alone."""
    reply_tokens: float
    """On average."""
    responses: int
    longest_reply_tokens: float | None = None
    """None: all replies are equally long."""

    @property
    def context(self) -> float:
        """Tokens of a response at its end."""
        return self.prompt_tokens + self.reply_tokens


@dataclass(frozen=True, slots=True)
class Rollout:
    """What is expected of a workload on an engine.

    Example:
        Rollout(fits=True, why="459,000 tokens of context fit: 14 of 32 responses at once", waves=3, …)
    """

    fits: bool
    """Whether one response fits beside the weights."""
    why: str
    kv_tokens_capacity: int
    """Tokens of context that one copy holds."""
    running: int
    """Responses at once."""
    waves: int
    """In which the responses run; 0: they cannot."""
    weight_bytes: int
    """Of each device, as are the others."""
    reserve_bytes: int
    kv_bytes: int
    """Keys and values of the responses that run at once, at their end."""
    tokens_per_gpu_s: Estimate | None
    """Written tokens, of each device and second; None: it does not fit."""
    step: StepSeconds | None
    """Of an average step of a full wave, by cause."""

    @property
    def memory_bytes(self) -> int:
        """Of each device, at most."""
        return self.weight_bytes + self.reserve_bytes + self.kv_bytes


def rollout(engine: Engine, workload: Workload, coefficients: Coefficients | None = None) -> Rollout:
    """Predict a rollout; unless others are given, with the stored coefficients."""
    known = coefficients or fitted()
    own = known.values
    capacity = engine.kv_tokens(own)
    slots = running(engine, workload, own)
    fits = slots >= 1
    at_once = int(slots)
    held = at_once * workload.context * engine.token_bytes
    return Rollout(
        fits=fits,
        why=_why(engine, workload, own, at_once),
        kv_tokens_capacity=capacity,
        running=at_once,
        waves=ceil(workload.responses / at_once) if fits else 0,
        weight_bytes=engine.weight_bytes,
        reserve_bytes=engine.reserve_bytes(own),
        kv_bytes=int(held),
        tokens_per_gpu_s=_estimate(engine, workload, known) if fits else None,
        step=mean_step(engine, workload, at_once, own) if fits else None,
    )


def running(engine: Engine, workload: Workload, own: Values) -> float:
    """Responses at once: those whose keys and values fit until their end; not yet a whole number."""
    return min(workload.responses, engine.software.max_sequences, engine.kv_tokens(own) / workload.context)


def tokens_per_second(engine: Engine, workload: Workload, own: Values) -> float:
    """Written tokens of one copy: whole waves one after another, then what is left.

    A step reads as many tokens of prompts as in the long run belong to the tokens that it writes. Where these are more
    than a step takes, fewer sequences are written at a time. Replies of unlike length end one by one, and others take
    their places, until at last the longest run alone.
    """
    slots = max(1.0, running(engine, workload, own))
    full = int(workload.responses / slots)
    rest = workload.responses - full * slots
    if workload.longest_reply_tokens:
        steps = (
            workload.responses / slots * workload.reply_tokens + workload.longest_reply_tokens - workload.reply_tokens
        )
        seconds = _seconds(engine, workload, workload.responses * workload.reply_tokens / steps, steps, own)
    else:
        seconds = full * _seconds(engine, workload, slots, workload.reply_tokens, own)
        seconds += _seconds(engine, workload, rest, workload.reply_tokens, own) if rest >= 1 else 0.0
    return workload.responses * workload.reply_tokens / seconds


def _seconds(engine: Engine, workload: Workload, count: float, steps: float, own: Values) -> float:
    """Of so many steps with `count` responses at once, or more steps with fewer where their prompts are too long."""
    per_step = min(count, engine.software.step_tokens * workload.reply_tokens / workload.context)
    return steps * count / per_step * mean_step(engine, workload, per_step, own).total


def mean_step(engine: Engine, workload: Workload, count: float, own: Values) -> StepSeconds:
    """Of `count` responses half-way through their replies, with the prompts of those that follow."""
    prompts = count * workload.prompt_tokens / workload.reply_tokens
    context = workload.prompt_tokens + workload.reply_tokens / 2
    batch = StepLoad(count, context, prompts, workload.prompt_tokens / 2)
    return average_step(engine, batch, workload.prompt_tokens, own)


def interval(value: Callable[[Values], float], known: Coefficients) -> tuple[float, float]:
    """The 80 % interval of a prediction: how unsure the coefficients are, and how far measurements lie about it."""
    best = value(known.values)
    slopes = [
        log(value({**known.values, name: own * exp(NUDGE)}) / value({**known.values, name: own * exp(-NUDGE)}))
        for name, own in known.values.items()
    ]
    gradient = np.array(slopes) / (2 * NUDGE)
    spread = float(np.sqrt(gradient @ known.covariance @ gradient + known.spread**2))
    return best * exp(-INTERVAL * spread), best * exp(INTERVAL * spread)


def _estimate(engine: Engine, workload: Workload, known: Coefficients) -> Estimate:
    def value(values: Values) -> float:
        return tokens_per_second(engine, workload, values) / engine.tp

    return Estimate(value(known.values), *interval(value, known), "predicted")


def _why(engine: Engine, workload: Workload, own: Values, at_once: int) -> str:
    """In words, what decides how many run at once."""
    room = engine.room_bytes(own)
    if room <= 0:
        need = (engine.weight_bytes + engine.reserve_bytes(own)) / GIB
        return f"weights and workspace take {need:.1f} GiB of {engine.device.memory_bytes / GIB:.1f}"
    tokens = engine.kv_tokens(own)
    if at_once < 1:
        return f"{tokens:,} tokens of context fit, one response has {workload.context:,.0f}"
    if at_once >= workload.responses:
        return f"{tokens:,} tokens of context fit: all {workload.responses} responses at once"
    if at_once >= engine.software.max_sequences:
        return f"{engine.software.name} runs at most {at_once} sequences at once"
    return f"{tokens:,} tokens of context fit: {at_once} of {workload.responses} responses at once"
