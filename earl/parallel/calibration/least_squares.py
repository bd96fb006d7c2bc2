"""Non-linear least squares with priors: Levenberg and Marquardt's method, in numpy."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
NUDGE = 5e-3
ROUNDS = 60
ENOUGH = 1e-5
"""Relative improvement of a round that is the last."""


def minimise(residuals: Callable[[Vector], Vector], start: Vector) -> tuple[Vector, Vector]:
    """The point with the least sum of squares near `start`, and the inverse of the normal matrix there.

    A step goes towards the minimum of the squares of the linearised residuals; where it does not help, it turns to the
    gradient and shortens.

    Returns:
        the point [P]; the covariance of it [P, P], for residuals of standard deviation 1
    """
    point, damping = start, 1e-3
    value = residuals(point)
    for _ in range(ROUNDS):
        slopes = jacobian(residuals, point)
        normal = slopes.T @ slopes
        moved, tried, damping = _step(residuals, point, value, slopes, normal, damping)
        enough = tried @ tried > (1 - ENOUGH) * (value @ value)
        point, value = moved, tried
        if enough:
            break
    slopes = jacobian(residuals, point)
    return point, np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=np.float64)


def jacobian(residuals: Callable[[Vector], Vector], point: Vector) -> Vector:
    """Derivatives of the residuals, one column for each coordinate. [R, P]"""
    nudges = NUDGE * np.eye(len(point))
    columns = [(residuals(point + nudge) - residuals(point - nudge)) / (2 * NUDGE) for nudge in nudges]
    return np.stack(columns, axis=1)


def _step(
    residuals: Callable[[Vector], Vector], point: Vector, value: Vector, slopes: Vector, normal: Vector, damping: float
) -> tuple[Vector, Vector, float]:
    """A step that helps, the residuals there, and the damping of the next one; the same point when none does."""
    while damping < 1e9:
        moved = point + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ value)
        tried = residuals(moved)
        if tried @ tried < value @ value:
            return moved, tried, damping / 4
        damping *= 4
    return point, value, damping
