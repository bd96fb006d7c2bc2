"""Coefficients of the throughput model from published measurements: non-linear least squares on its logarithm."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, inf, log

import numpy as np

from earl.parallel.calibration.least_squares import Vector, minimise
from earl.parallel.calibration.tables import Measured
from earl.parallel.throughput.coefficients import PRIORS, Coefficients, Values
from earl.parallel.throughput.rollout import mean_step, running, tokens_per_second
from earl.parallel.throughput.step import Batch, step_seconds

ERROR = 0.06
"""Standard deviation of a measurement's logarithm about the model, as it is expected: weighs data against priors."""
CALM_RATE = 8.0
"""Requests a second up to which nothing queues."""
ROUNDS = 6
"""In which the sequences at work and the time of a step find each other."""


def fit(rows: Sequence[Measured], start: Values | None = None) -> Coefficients:
    """Fit every coefficient; from what is believed, unless a start is given, which spares time alone."""
    names = list(PRIORS)
    believed = np.array([log(prior.value) for prior in PRIORS.values()])
    spreads = np.array([prior.spread for prior in PRIORS.values()])

    def residuals(point: Vector) -> Vector:
        own = dict(zip(names, map(exp, point), strict=True))
        return np.concatenate([errors(rows, own) / ERROR, pauses(rows, own) / ERROR, (point - believed) / spreads])

    begin = np.array([log(start[name]) for name in names]) if start else believed
    point, covariance = minimise(residuals, begin)
    values = dict(zip(names, map(exp, point), strict=True))
    spread = float(np.sqrt(np.mean(errors(rows, values) ** 2)))
    return Coefficients(values, covariance, spread)


def errors(rows: Iterable[Measured], own: Values) -> Vector:
    """Logarithms of predicted by measured throughput. [R]"""
    return np.array([log(predicted(row, own) / row.tokens_per_second) for row in rows])


def pauses(rows: Iterable[Measured], own: Values) -> Vector:
    """Logarithms of predicted by measured time between tokens, where few requests are at work: latency alone."""
    return np.array(
        [
            log(mean_step(row.engine, row.workload, at_work(row, own), own).total / row.token_seconds)
            for row in rows
            if row.token_seconds and row.rate <= CALM_RATE
        ]
    )


def predicted(row: Measured, own: Values) -> float:
    """Written tokens in a second, of all devices, as the row's page measures them."""
    load = row.workload
    if row.chat:
        load = replace(load, longest_reply_tokens=load.reply_tokens * own["chat_longest"])
    most = tokens_per_second(row.engine, load, own)
    return most if row.rate == inf else min(most, _arriving(row, own))


def at_work(row: Measured, own: Values) -> float:
    """Requests at once, when they arrive evenly: as many as come while one is answered."""
    load = row.workload
    most, count = max(1.0, running(row.engine, load, own)), 1.0
    for _ in range(ROUNDS):
        seconds = load.reply_tokens * mean_step(row.engine, load, count, own).total
        count = min(most, max(1.0, row.rate * seconds))
    return count


def _arriving(row: Measured, own: Values) -> float:
    """Until the last request has come, and then, with half as many at work, until the last is answered."""
    load, count = row.workload, at_work(row, own)
    if count >= running(row.engine, load, own):
        return inf
    last = Batch(max(1.0, count / 2), load.prompt_tokens + load.reply_tokens / 2)
    tail = load.reply_tokens * (1 + own["chat_longest"] if row.chat else 2) / 2
    seconds = load.responses / row.rate + tail * step_seconds(row.engine, last, own).total
    return load.responses * load.reply_tokens / seconds
