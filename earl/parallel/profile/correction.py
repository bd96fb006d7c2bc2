"""Predictions moved by measurements next to them: a normal prior on how wrong predictions are, and its posterior mean.

The error of a prediction is a sum of three: of everything that a stage is predicted to take (the machine is slower), of
one choice (its communication is), and of one choice near one load. Each is normal with mean zero; the last fades with
the distance between loads. So a measurement says most of its own choice and load, something of that choice elsewhere,
and a little of every other choice (Gaussian process regression; Rasmussen and Williams, 2006, chapter 2). Given the
error that all share, choices know nothing of each other: each is a small system of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from earl.parallel.choice import Choice
from earl.parallel.profile.cells import REMEMBERED, Cell, Cells

Floats = NDArray[np.float64]

STAGE, CHOICE, NEAR = 0.1, 0.06, 0.06
"""Prior standard deviations of the three errors, as logarithms: 0.06 is about 6 %."""
REACH = 2.0
"""Doublings of the load over which what is known of a choice fades."""
NOISE, NOISE_POINTS = 0.05, 4.0
"""Prior standard deviation of one measurement, and how many measurements it weighs as much as."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What cells of one stage say of any choice at any load."""

    shared: float
    """Logarithm of the factor on every prediction of the stage."""
    own: dict[Choice, tuple[Floats, Floats]]
    """By choice: where it was measured [N, 2], and how much each place counts [N]."""

    def at(self, choices: Sequence[Choice], places: Floats) -> Floats:
        """Logarithm of the factor on what is predicted. [C, P]

        Args:
            choices: C of them.
            places: [P, 2], as `place_of` gives them.
        """
        result = np.full((len(choices), len(places)), self.shared)
        for row, choice in enumerate(choices):
            if choice in self.own:
                known, weights = self.own[choice]
                result[row] += _covariance(places, known) @ weights
        return result


def correction(cells: Cells) -> Correction:
    """What the cells of one stage say."""
    noise = _noise(cells)
    measured: dict[Choice, list[Cell]] = {}
    for (choice, _), cell in cells.items():
        measured.setdefault(choice, []).append(cell)
    systems = {choice: _system(tuple(own), noise) for choice, own in measured.items()}
    precision = STAGE**-2 + sum(float(inverse.sum()) for _, _, inverse in systems.values())
    shared = sum(float((inverse @ ratios).sum()) for _, ratios, inverse in systems.values()) / precision
    own = {choice: (places, inverse @ (ratios - shared)) for choice, (places, ratios, inverse) in systems.items()}
    return Correction(shared, own)


@lru_cache(maxsize=512)
def _system(cells: tuple[Cell, ...], noise: float) -> tuple[Floats, Floats, Floats]:
    """Of one choice: places [N, 2], ratios [N], and the inverse of their covariance, the shared error apart [N, N]."""
    places = np.array([cell.place for cell in cells])
    counts = np.array([min(cell.count, REMEMBERED) for cell in cells], np.float64)
    inverse = np.asarray(np.linalg.inv(_covariance(places, places) + np.diag(noise / counts)), np.float64)
    return places, np.array([cell.ratio for cell in cells]), inverse


def _covariance(places: Floats, others: Floats) -> Floats:
    distance = np.abs(places[:, None] - others[None]).sum(-1)
    covariance: Floats = CHOICE**2 + NEAR**2 * np.exp(-distance / REACH)
    return covariance


def _noise(cells: Cells) -> float:
    """Variance of one measurement, of all cells together, to two digits: a system is solved anew only if it changes."""
    degrees = [min(cell.count, REMEMBERED) - 1 for cell in cells.values()]
    squares = sum(count * cell.spread**2 for count, cell in zip(degrees, cells.values(), strict=True))
    return float(f"{(NOISE_POINTS * NOISE**2 + squares) / (NOISE_POINTS + sum(degrees)):.1e}")
