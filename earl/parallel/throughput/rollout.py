"""Speed of a rollout on one copy of a serving engine: responses at once, and waves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from earl.parallel.memory import Estimate
from earl.parallel.throughput.step import Coefficients, Engine, StepLoad, Values, average_step, fitted

Vector = NDArray[np.float64]
INTERVAL = 1.2816  # standard deviations to either side that hold 80 %
NUDGE = 1e-3  # step of a coefficient's logarithm, for derivatives


@dataclass(frozen=True, slots=True)
class Workload:
    """The responses given to one copy of an engine at once."""

    prompt_tokens: float  # read per response; 0: the decode phase alone
    reply_tokens: float  # on average
    responses: int
    longest_reply_tokens: float | None = None  # None: all replies are equally long

    @property
    def context(self) -> float:
        """Tokens of a response at its end."""
        return self.prompt_tokens + self.reply_tokens


@dataclass(frozen=True, slots=True)
class Rollout:
    """Prediction of a workload on an engine."""

    kv_tokens_capacity: int  # of context, in one copy
    running: int  # responses at once; 0: not one fits beside the weights
    waves: int  # in which the responses run; 0: they cannot
    kv_bytes: int  # on each device: keys and values at the end of the responses that run at once
    tokens_per_gpu_s: Estimate | None  # written tokens, of each device and second; None: it does not fit


def rollout(engine: Engine, workload: Workload) -> Rollout:
    known = fitted(engine)
    at_once = int(running(engine, workload, known.values))
    return Rollout(
        kv_tokens_capacity=engine.kv_tokens(known.values),
        running=at_once,
        waves=ceil(workload.responses / at_once) if at_once else 0,
        kv_bytes=int(at_once * workload.context * engine.token_bytes),
        tokens_per_gpu_s=_estimate(engine, workload, known) if at_once else None,
    )


def running(engine: Engine, workload: Workload, own: Values) -> float:
    """Responses whose keys and values fit until their end; a fractional number."""
    return min(workload.responses, engine.software.max_sequences, engine.kv_tokens(own) / workload.context)


def tokens_per_second(engine: Engine, workload: Workload, own: Values) -> float:
    """Written tokens per second of one copy: whole waves one after another, then the rest.

    Prompts are read in proportion to written tokens; if a step cannot take as many, fewer sequences are written at a
    time. Replies of unequal length end one by one and are replaced, until the longest run alone.
    """
    slots, reply = max(1.0, running(engine, workload, own)), workload.reply_tokens
    if workload.longest_reply_tokens:
        steps = workload.responses / slots * reply + workload.longest_reply_tokens - reply
        seconds = _seconds(engine, workload, workload.responses * reply / steps, steps, own)
    else:
        full = int(workload.responses / slots)
        rest = workload.responses - full * slots
        seconds = full * _seconds(engine, workload, slots, reply, own)
        seconds += _seconds(engine, workload, rest, reply, own) if rest >= 1 else 0.0
    return workload.responses * reply / seconds


def _seconds(engine: Engine, workload: Workload, count: float, steps: float, own: Values) -> float:
    """Time of `steps` steps with `count` responses at once, or of more steps with fewer if prompts are too long."""
    per_step = min(count, engine.software.step_tokens * workload.reply_tokens / workload.context)
    return steps * count / per_step * mean_step(engine, workload, per_step, own)


def mean_step(engine: Engine, workload: Workload, count: float, own: Values) -> float:
    """Seconds of a step of `count` responses half-way through their replies, with the prompts of later ones.

    Over pp stages as many batches are on their way, each with its part of the responses, in the time in which one
    passes all stages; what is sent between hosts (2 bytes x hidden a token) is left out.
    """
    one = max(1.0, count / engine.pp)
    prompts = one * workload.prompt_tokens / workload.reply_tokens
    context = workload.prompt_tokens + workload.reply_tokens / 2
    batch = StepLoad(one, context, prompts, workload.prompt_tokens / 2)
    return average_step(replace(engine, pp=1), batch, workload.prompt_tokens, own)


def gradient(value: Callable[[Values], float], own: Values) -> Vector:
    """Derivatives of a value's logarithm by the logarithms of the coefficients. [C]"""
    best = log(value(own))
    return np.array([log(value({**own, name: at * exp(NUDGE)})) - best for name, at in own.items()]) / NUDGE


def interval(value: Callable[[Values], float], known: Coefficients) -> tuple[float, float]:
    """The 80 % interval of a prediction: uncertainty of the coefficients, and spread of measurements around it."""
    best, slopes = value(known.values), gradient(value, known.values)
    spread = float(np.sqrt(slopes @ known.covariance @ slopes + known.spread**2))
    return best * exp(-INTERVAL * spread), best * exp(INTERVAL * spread)


def surely_faster(first: Engine, second: Engine, workload: Workload) -> bool:
    """Whether the 80 % interval of the ratio of their speeds lies above 1; what is uncertain of both alike cancels."""
    known = fitted(first)

    def ratio(own: Values) -> float:
        speeds = [tokens_per_second(engine, workload, own) / engine.devices for engine in (first, second)]
        return speeds[0] / speeds[1]

    return interval(ratio, replace(known, spread=known.spread * sqrt(2)))[0] > 1


def _estimate(engine: Engine, workload: Workload, known: Coefficients) -> Estimate:
    def value(values: Values) -> float:
        return tokens_per_second(engine, workload, values) / engine.devices

    return Estimate(value(known.values), *interval(value, known))
