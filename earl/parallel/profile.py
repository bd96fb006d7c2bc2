"""Measurements of layouts: ratios to predictions by bucket, the corrections that follow, and timings before a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import log, log2
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.parallel.layout import Bucket, Choice, bucket_of
from earl.parallel.memory import Load

REMEMBERED = 30
"""Most measurements of a cell that count, so that it follows a machine that changes."""
SURPRISING = 0.7
"""Log ratios are clipped this far from the cell's mean: a step of twice the time was disturbed."""


@dataclass(frozen=True, slots=True)
class ProfileCell:
    """Measurements of one choice in one bucket. A ratio of 0.08 is about 8 % slower than predicted."""

    choice: Choice
    bucket: Bucket
    count: int
    place: tuple[float, float]  # mean log2 of the mean context and of the sequences
    ratio: float  # mean of log(measured / predicted)
    spread: float  # standard deviation around that mean; 0 for a single one
    seconds: float  # mean measured time of the stage in a step


Cells = list[ProfileCell]


def add_measurement(cells: Cells, choice: Choice, load: Load, seconds: float, predicted: float) -> Cells:
    """A copy of the cells with one more measurement."""
    bucket, ratio = bucket_of(load.mean_tokens, load.sequences), log(seconds / predicted)
    place = place_of(load.mean_tokens, load.sequences)
    at = next((at for at, own in enumerate(cells) if (own.choice, own.bucket) == (choice, bucket)), None)
    if at is None:  # the first one is not clipped: the prediction may be off by any factor
        return [*cells, ProfileCell(choice, bucket, 1, place, ratio, 0.0, seconds)]
    known = cells[at]
    share = 1 / min(known.count + 1, REMEMBERED)
    away = min(max(ratio, known.ratio - SURPRISING), known.ratio + SURPRISING) - known.ratio

    def mean(before: float, now: float) -> float:
        return before + share * (now - before)

    one = replace(
        known,
        count=known.count + 1,
        place=(mean(known.place[0], place[0]), mean(known.place[1], place[1])),
        ratio=known.ratio + share * away,
        spread=((1 - share) * (known.spread**2 + share * away**2)) ** 0.5,
        seconds=mean(known.seconds, seconds),
    )
    return [*cells[:at], one, *cells[at + 1 :]]


def place_of(tokens: float, sequences: int) -> tuple[float, float]:
    """A load as a point between buckets."""
    return log2(max(1.0, tokens)), log2(max(1, sequences))


# Corrections: Gaussian process regression (Rasmussen and Williams, 2006, chapter 2) on log errors of predictions. An
# error is the sum of three normal terms: of the stage, of one choice, and of one choice near one load, which fades
# with the distance between loads. Given the stage's term, choices are independent: each is a small system of its
# own.

Floats = NDArray[np.float64]

STAGE, CHOICE, NEAR = 0.1, 0.06, 0.06
"""Standard deviations of the three errors, as logarithms; the last two only in proportion to each other."""
ERROR = (CHOICE**2 + NEAR**2) ** 0.5
USUAL, DOUBT = 0.15, 1.0
"""How wrong predictions of one choice are before anything is known: the median of their standard deviation, and the
standard deviation of its logarithm."""
ERRORS = 0.03 * 2.0 ** (np.arange(9) / 2)
"""Standard deviations that those errors may have."""
SPREADS = 0.05 * 2.0 ** np.arange(5)
"""Standard deviations that the true seconds of choices may have, as logarithms."""
REACH = 2.0  # doublings of the load over which a choice's measurements fade
SLOPE, MIDDLE = 0.02, 10.0
"""Standard deviation of an error's change per doubling of the context, and log2 of the context without it."""
NOISE, NOISE_POINTS = 0.05, 4.0
"""Prior standard deviation of one measurement, and the number of measurements that it weighs."""


SURE, SURE_NOW = 0.12, 0.06
"""Doubt below which a choice that was measured is known, and below which the present one is."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The posterior of one stage, for any choice at any load."""

    shared: float  # logarithm of the factor on every prediction of the stage
    own: dict[Choice, tuple[Floats, Floats, Floats]]
    """By choice: measured places [N, 2], their weights [N], and the inverse of their covariance [N, N]."""
    means: dict[Choice, float]  # by choice, expected before it is measured, apart from `shared`
    wider: float  # variance of choices' errors over ERROR**2
    noise: float  # variance of one measurement

    def at(self, choices: Sequence[Choice], places: Floats) -> Floats:
        """Logarithm of the factor on predictions for C choices at P places [P, 2], as of `place_of`: [C, P]."""
        result = np.full((len(choices), len(places)), self.shared)
        for row, choice in enumerate(choices):
            result[row] += self.means.get(choice, 0.0)
            if choice in self.own:
                known, weights, _ = self.own[choice]
                result[row] += _covariance(places, known, self.wider) @ weights
        return result

    def telling(self, choice: Choice, places: Floats, least: float = SURE) -> tuple[float, ...]:
        """Standard deviation by which one more measurement at the first place [P, 2] would move that logarithm at each,
        apart from the error that all choices share [P]; empty if it was measured and the doubt is below `least`."""
        covariance = _covariance(places[:1], places, self.wider)[0]
        if choice in self.own:
            known, _, inverse = self.own[choice]
            here, there = (_covariance(own, known, self.wider) for own in (places[:1], places))
            covariance = covariance - there @ inverse @ here[0]
            if covariance[0] < least**2:
                return ()
        moved = np.maximum(covariance, 0.0) / np.sqrt(max(float(covariance[0]), 0.0) + self.noise)
        return tuple(moved.tolist())


def correction(cells: Cells, predicted: Mapping[Choice, float] | None = None) -> Correction:
    """`predicted`: logarithms of the predicted seconds of the choices to choose from now."""
    noise = _noise(cells)
    measured: dict[Choice, Cells] = {}
    for cell in cells:
        measured.setdefault(cell.choice, []).append(cell)
    middle = fmean(predicted.values()) if predicted else 0.0
    apart = {choice: value - middle for choice, value in (predicted or {}).items()}
    wider, drawn = _prior(measured, apart, noise)
    means = {choice: -drawn * value for choice, value in apart.items()}
    systems = {choice: _system(tuple(own), noise, wider) for choice, own in measured.items()}
    away = {choice: ratios - means.get(choice, 0.0) for choice, (_, ratios, _) in systems.items()}
    precision = STAGE**-2 + sum(float(inverse.sum()) for _, _, inverse in systems.values())
    shared = sum(float((systems[choice][2] @ own).sum()) for choice, own in away.items()) / precision
    own = {one: (places, inverse @ (away[one] - shared), inverse) for one, (places, _, inverse) in systems.items()}
    return Correction(shared, own, means, wider, noise)


def _prior(measured: dict[Choice, Cells], apart: Mapping[Choice, float], noise: float) -> tuple[float, float]:
    """What predictions and measurements say of the errors of predictions: their variance over ERROR**2, to two digits,
    so that cached systems stay valid; and the share by which predictions are drawn to their mean.

    Empirical Bayes: true logarithms of choices differ with variance t, predictions of them are off with variance e. So
    predictions `apart` from their mean have variance t + e; given one of d, the ratio of measured over predicted has
    mean -d * e / (t + e) and variance e * t / (t + e) (Efron and Morris, 1973). Means over a grid of both.
    """
    errors, spreads = (grid.ravel() ** 2 for grid in np.meshgrid(ERRORS, SPREADS))
    both = errors + spreads
    logs = -0.5 * (np.log(errors / USUAL**2) / (2 * DOUBT)) ** 2
    if apart:
        logs -= 0.5 * ((len(apart) - 1) * np.log(both) + sum(own**2 for own in apart.values()) / both)
    if measured:  # one ratio of each, normal, with the shared error in all
        ratios = np.array([fmean(cell.ratio for cell in cells) for cells in measured.values()])
        counts = [min(sum(cell.count for cell in cells), REMEMBERED) for cells in measured.values()]
        away = ratios + np.outer(errors / both, [apart.get(choice, 0.0) for choice in measured])
        own = (errors * spreads / both)[:, None] + noise / np.array(counts)
        precision = STAGE**-2 + (1 / own).sum(1)
        logs -= 0.5 * ((away**2 / own).sum(1) - (away / own).sum(1) ** 2 / precision)
        logs -= 0.5 * (np.log(own).sum(1) + np.log(precision))
    likely = np.exp(logs - logs.max())
    likely /= likely.sum()
    return float(f"{likely @ (errors * spreads / both) / ERROR**2:.1e}"), float(likely @ (errors / both))


@lru_cache(maxsize=512)
def _system(cells: tuple[ProfileCell, ...], noise: float, wider: float) -> tuple[Floats, Floats, Floats]:
    """One choice's places [N, 2], ratios [N], and the inverse of their covariance without the shared error [N, N]."""
    places = np.array([cell.place for cell in cells])
    counts = np.array([min(cell.count, REMEMBERED) for cell in cells], np.float64)
    inverse = np.asarray(np.linalg.inv(_covariance(places, places, wider) + np.diag(noise / counts)), np.float64)
    return places, np.array([cell.ratio for cell in cells]), inverse


def _covariance(places: Floats, others: Floats, wider: float) -> Floats:
    """The covariance of a choice's errors at two lists of places. Where they are larger than the prior says, they reach
    further, and grow with the context."""
    distance = np.abs(places[:, None] - others[None]).sum(-1)
    doublings = np.outer(places[:, 0] - MIDDLE, others[:, 0] - MIDDLE)
    covariance: Floats = wider * (CHOICE**2 + NEAR**2 * np.exp(-distance / (REACH * wider**0.5)))
    return covariance + max(wider - 1, 0.0) * SLOPE**2 * doublings


def _noise(cells: Cells) -> float:
    """Pooled variance of one measurement, to two digits, so that cached systems stay valid."""
    degrees = [min(cell.count, REMEMBERED) - 1 for cell in cells]
    squares = sum(count * cell.spread**2 for count, cell in zip(degrees, cells, strict=True))
    return float(f"{(NOISE_POINTS * NOISE**2 + squares) / (NOISE_POINTS + sum(degrees)):.1e}")


@dataclass(frozen=True, slots=True)
class Point:
    """A choice at a context and a load."""

    choice: Choice
    tokens: int  # of every context
    sequences: int

    @property
    def load(self) -> Load:
        return Load(self.sequences, float(self.tokens), self.tokens, self.tokens)


@dataclass(frozen=True, slots=True)
class Timing:
    point: Point
    seconds: float  # mean of the measurements
    spread: float  # standard deviation of the measurements; 0 for a single one
    count: int  # of measurements
    measured_at: str  # ISO 8601, in UTC

    def as_object(self) -> dict[str, Any]:
        own = asdict(self)
        return {**own.pop("point"), "origin": "measured", **own}


@dataclass(frozen=True, slots=True)
class Skipped:
    point: Point
    why: str

    def as_object(self) -> dict[str, Any]:
        return {**asdict(self.point), "why": self.why}


def spread_of(seconds: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value."""
    return fmean(seconds), stdev(seconds) if len(seconds) > 1 else 0.0
