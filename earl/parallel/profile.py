"""What was measured, bucket by bucket: measurements stay apart from what is predicted, and are kept as ratios to it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.parallel.layout import Bucket, Choice, mean_bucket
from earl.parallel.memory import Load, Origin

REMEMBERED = 30
"""Measurements of a cell count as so many at most, so that it follows a machine that changes."""
SURPRISING = 0.7
"""A logarithm of a ratio beyond is cut off there: a step that took twice as long was held up by something else."""


@dataclass(frozen=True, slots=True)
class ProfileCell:
    """Measurements of one choice in one bucket.

    Example:
        Cell(count=12, place=(10.6, 5.0), ratio=0.08, spread=0.03, seconds=1.31)   # 8 % slower than predicted
    """

    count: int
    place: tuple[float, float]
    """Mean log2 of the mean context and of the sequences."""
    ratio: float
    """Mean of log(measured / predicted)."""
    spread: float
    """Standard deviation of the measurements around that mean; 0 for a single one."""
    seconds: float
    """Mean of what was measured, of a whole step of this stage."""

    def with_one(self, place: tuple[float, float], ratio: float, seconds: float) -> "ProfileCell":
        """With one more measurement."""
        share = 1 / min(self.count + 1, REMEMBERED)
        away = ratio - self.ratio
        variance = (1 - share) * (self.spread**2 + share * away**2)
        return ProfileCell(
            self.count + 1,
            (self.place[0] + share * (place[0] - self.place[0]), self.place[1] + share * (place[1] - self.place[1])),
            self.ratio + share * away,
            variance**0.5,
            self.seconds + share * (seconds - self.seconds),
        )


Cells = dict[tuple[Choice, Bucket], ProfileCell]


def measured(cells: Cells, choice: Choice, load: Load, seconds: float, predicted: float) -> Cells:
    """The cells with one more measurement; what they were stays as it is."""
    key, place = (choice, mean_bucket(load)), place_of(load.mean_tokens, load.sequences)
    known, ratio = cells.get(key), log(seconds / predicted)
    # Until something is known of the bucket, nothing can be surprising: the prediction may be off by any factor.
    if known:
        ratio = min(max(ratio, known.ratio - SURPRISING), known.ratio + SURPRISING)
    one = known.with_one(place, ratio, seconds) if known else ProfileCell(1, place, ratio, 0.0, seconds)
    return {**cells, key: one}


def place_of(tokens: float, sequences: int) -> tuple[float, float]:
    """Where a load lies between buckets."""
    return log2(max(1.0, tokens)), log2(max(1, sequences))


def as_objects(cells: Cells) -> list[dict[str, Any]]:
    """As JSON holds them."""
    return [
        {"choice": choice.as_object(), "bucket": asdict(bucket), **asdict(cell)}
        for (choice, bucket), cell in cells.items()
    ]


def cells_of(objects: list[dict[str, Any]]) -> Cells:
    """What `as_objects` made."""
    result: Cells = {}
    for fields in objects:
        values = {name: value for name, value in fields.items() if name not in ("choice", "bucket")}
        cell = ProfileCell(**{**values, "place": tuple(values["place"])})
        result[Choice.of(fields["choice"]), Bucket(**fields["bucket"])] = cell
    return result


# Predictions moved by measurements next to them: a normal prior on how wrong predictions are, and its posterior mean.
#
# The error of a prediction is a sum of three: of everything that a stage is predicted to take (the machine is
# slower), of one choice (its communication is), and of one choice near one load. Each is normal with mean zero; the
# last fades with the distance between loads. So a measurement says most of its own choice and load, something of that
# choice elsewhere, and a little of every other choice (Gaussian process regression; Rasmussen and Williams, 2006,
# chapter 2). Given the error that all share, choices know nothing of each other: each is a small system of its own.

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
    measured: dict[Choice, list[ProfileCell]] = {}
    for (choice, _), cell in cells.items():
        measured.setdefault(choice, []).append(cell)
    systems = {choice: _system(tuple(own), noise) for choice, own in measured.items()}
    precision = STAGE**-2 + sum(float(inverse.sum()) for _, _, inverse in systems.values())
    shared = sum(float((inverse @ ratios).sum()) for _, ratios, inverse in systems.values()) / precision
    own = {choice: (places, inverse @ (ratios - shared)) for choice, (places, ratios, inverse) in systems.items()}
    return Correction(shared, own)


@lru_cache(maxsize=512)
def _system(cells: tuple[ProfileCell, ...], noise: float) -> tuple[Floats, Floats, Floats]:
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


# What layouts took when they were tried before a run: measured numbers, each beside what had been expected of it.


@dataclass(frozen=True, slots=True)
class Point:
    """A choice at a context and a load.

    Example:
        Point(Choice("rollout", Layout(dp=2, tp=1)), tokens=512, sequences=384)
    """

    choice: Choice
    tokens: int
    """Of every context."""
    sequences: int

    @property
    def load(self) -> Load:
        """As the selector knows it."""
        return Load(self.sequences, float(self.tokens), self.tokens, self.tokens)


@dataclass(frozen=True, slots=True)
class Expected:
    """What was thought before."""

    seconds: float
    origin: Origin
    """`predicted` or `corrected`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What a stage took at a point.

    Example:
        Timing(point, seconds=1.31, spread=0.04, count=3, measured_at="2026-11-21T02:50:54+00:00")
    """

    point: Point
    seconds: float
    """Mean of what was measured."""
    spread: float
    """Standard deviation of the measurements; 0 for a single one."""
    count: int
    """Of measurements."""
    measured_at: str
    """ISO 8601, in UTC."""
    expected: Expected | None = None
    """Just before; None: nothing was known of how fast the machines are."""

    @property
    def origin(self) -> Origin:
        """Of `seconds`."""
        return "measured"

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        own = {name: getattr(self, name) for name in ("seconds", "spread", "count", "origin", "measured_at")}
        expected = None if self.expected is None else asdict(self.expected)
        return {**asdict(self.point), "choice": self.point.choice.as_object(), **own, "expected": expected}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A point that was not tried."""

    point: Point
    why: str

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self.point), "choice": self.point.choice.as_object(), "why": self.why}


def spread_of(seconds: list[float]) -> tuple[float, float]:
    """Mean and standard deviation.

    Example:
        >>> spread_of([1.0, 3.0])
        (2.0, 1.4142135623730951)
    """
    mean = sum(seconds) / len(seconds)
    squares = sum((one - mean) ** 2 for one in seconds)
    return mean, (squares / (len(seconds) - 1)) ** 0.5 if len(seconds) > 1 else 0.0
