"""What was measured, bucket by bucket: measurements stay apart from what is predicted, and are kept as ratios to it."""

from dataclasses import asdict, dataclass
from math import log, log2
from typing import Any

from earl.parallel.choice import Bucket, Choice, mean_bucket
from earl.parallel.load import Load

REMEMBERED = 30
"""Measurements of a cell count as so many at most, so that it follows a machine that changes."""
SURPRISING = 0.7
"""A logarithm of a ratio beyond is cut off there: a step that took twice as long was held up by something else."""


@dataclass(frozen=True, slots=True)
class Cell:
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

    def with_one(self, place: tuple[float, float], ratio: float, seconds: float) -> "Cell":
        """With one more measurement."""
        share = 1 / min(self.count + 1, REMEMBERED)
        away = ratio - self.ratio
        variance = (1 - share) * (self.spread**2 + share * away**2)
        return Cell(
            self.count + 1,
            (self.place[0] + share * (place[0] - self.place[0]), self.place[1] + share * (place[1] - self.place[1])),
            self.ratio + share * away,
            variance**0.5,
            self.seconds + share * (seconds - self.seconds),
        )


Cells = dict[tuple[Choice, Bucket], Cell]


def measured(cells: Cells, choice: Choice, load: Load, seconds: float, predicted: float) -> Cells:
    """The cells with one more measurement; what they were stays as it is."""
    key, place = (choice, mean_bucket(load)), place_of(load.mean_tokens, load.sequences)
    known, ratio = cells.get(key), log(seconds / predicted)
    # Until something is known of the bucket, nothing can be surprising: the prediction may be off by any factor.
    if known:
        ratio = min(max(ratio, known.ratio - SURPRISING), known.ratio + SURPRISING)
    one = known.with_one(place, ratio, seconds) if known else Cell(1, place, ratio, 0.0, seconds)
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
        cell = Cell(**{**values, "place": tuple(values["place"])})
        result[Choice.of(fields["choice"]), Bucket(**fields["bucket"])] = cell
    return result
