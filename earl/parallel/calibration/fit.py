"""Coefficients of the throughput model from published measurements: non-linear least squares on its logarithm."""

from collections.abc import Iterable, Sequence
from math import exp, inf, log

import numpy as np

from earl.parallel.calibration.least_squares import Vector, minimise
from earl.parallel.calibration.tables import Measured
from earl.parallel.throughput.coefficients import PRIORS, Coefficients, Values
from earl.parallel.throughput.rollout import mean_step, running, tokens_per_second

ERROR = 0.06
"""Standard deviation of a measurement's logarithm about the model, as it is expected: weighs data against priors."""
ROUNDS = 12
"""In which the sequences at work and the time of a step find each other."""


def fit(rows: Sequence[Measured]) -> Coefficients:
    """Fit every coefficient."""
    names = list(PRIORS)
    believed = np.array([log(prior.value) for prior in PRIORS.values()])
    spreads = np.array([prior.spread for prior in PRIORS.values()])

    def residuals(point: Vector) -> Vector:
        own = dict(zip(names, map(exp, point), strict=True))
        return np.concatenate([errors(rows, own) / ERROR, (point - believed) / spreads])

    point, covariance = minimise(residuals, believed)
    values = dict(zip(names, map(exp, point), strict=True))
    spread = float(np.sqrt(np.mean(errors(rows, values) ** 2)))
    return Coefficients(values, covariance, spread)


def errors(rows: Iterable[Measured], own: Values) -> Vector:
    """Logarithms of predicted by measured throughput. [R]"""
    return np.array([log(predicted(row, own) / row.tokens_per_second) for row in rows])


def predicted(row: Measured, own: Values) -> float:
    """Written tokens in a second, of all devices, as the row's page measures them."""
    if row.rate == inf:
        return tokens_per_second(row.engine, row.workload, own)
    return _arriving(row, own)


def _arriving(row: Measured, own: Values) -> float:
    """Requests that arrive evenly: until the last has come, and what that one then takes."""
    load = row.workload
    most = max(1.0, running(row.engine, load, own))
    at_work = 1.0
    for _ in range(ROUNDS):
        seconds = mean_step(row.engine, load, at_work, own).total
        at_work = min(most, row.rate * load.reply_tokens * seconds)
    arriving = load.responses * load.reply_tokens / (load.responses / row.rate + load.reply_tokens * seconds)
    return min(arriving, tokens_per_second(row.engine, load, own))
