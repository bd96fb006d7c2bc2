"""Predictions moved by measurements next to them: a normal prior on how wrong predictions are, and its posterior.

The error of a prediction is a sum of three: of everything that a stage is predicted to take (the machine is slower), of
one choice (its communication is), and of one choice near one load. Each is normal with mean zero; the last fades with
the distance between loads. So a measurement says most of its own choice and load, something of that choice elsewhere,
and a little of every other choice (Gaussian process regression; Rasmussen and Williams, 2006, chapter 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.parallel.choice import Choice
from earl.parallel.profile.cells import REMEMBERED, Cells

Floats = NDArray[np.float64]

STAGE, CHOICE, NEAR = 0.1, 0.06, 0.06
"""Prior standard deviations of the three errors, as logarithms: 0.06 is about 6 %."""
PRIOR = STAGE**2 + CHOICE**2 + NEAR**2
REACH = 2.0
"""Doublings of the load over which what is known of a choice fades."""
NOISE, NOISE_POINTS = 0.05, 4.0
"""Prior standard deviation of one measurement, and how many measurements it weighs as much as."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What cells of one stage say of any choice at any load."""

    choices: tuple[Choice, ...]
    places: Floats  # [N, 2]
    weights: Floats  # [N]: inverse of the covariances, times the ratios
    inverse: Floats  # [N, N]

    def at(self, choices: Sequence[Choice], places: Floats) -> tuple[Floats, Floats]:
        """Logarithm of the factor on what is predicted, and its standard deviation, each [C, P].

        Args:
            choices: C of them.
            places: [P, 2], as `place_of` gives them.
        """
        same = _same(choices, self.choices)[:, None, :]
        across = _covariance(same, _distance(places, self.places)[None])  # [C, P, N]
        known = ((across @ self.inverse) * across).sum(-1)
        return across @ self.weights, np.sqrt(np.maximum(PRIOR - known, 0.0))


def correction(cells: Cells) -> Correction:
    """What the cells of one stage say."""
    choices = tuple(choice for choice, _ in cells)
    places = np.array([cell.place for cell in cells.values()]).reshape(-1, 2)
    counts = np.array([min(cell.count, REMEMBERED) for cell in cells.values()], np.float64)
    ratios = np.array([cell.ratio for cell in cells.values()])
    same = _same(choices, choices)
    covariance = _covariance(same, _distance(places, places))
    inverse = np.asarray(np.linalg.inv(covariance + np.diag(_noise(cells) / counts)), np.float64)
    return Correction(choices, places, inverse @ ratios, inverse)


def _same(choices: Sequence[Choice], others: Sequence[Choice]) -> Floats:
    """1 where one is the other. [C, N]"""
    same = [float(choice == other) for choice in choices for other in others]
    return np.array(same, np.float64).reshape(len(choices), len(others))


def _covariance(same: Floats, distance: Floats) -> Floats:
    return STAGE**2 + same * (CHOICE**2 + NEAR**2 * np.exp(-distance / REACH))


def _distance(places: Floats, others: Floats) -> Floats:
    """Doublings from each to each. [P, N]."""
    result: Floats = np.abs(places[:, None] - others[None]).sum(-1)
    return result


def _noise(cells: Cells) -> float:
    """Variance of one measurement, of all cells together."""
    degrees = [max(min(cell.count, REMEMBERED) - 1, 0) for cell in cells.values()]
    squares = sum(count * cell.spread**2 for count, cell in zip(degrees, cells.values(), strict=True))
    return (NOISE_POINTS * NOISE**2 + squares) / (NOISE_POINTS + sum(degrees))
