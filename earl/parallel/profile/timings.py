"""What layouts took when they were tried before a run: measured numbers, each beside what had been expected of it."""

from dataclasses import asdict, dataclass
from typing import Any

from earl.parallel.choice import Choice
from earl.parallel.estimate import Origin
from earl.parallel.load import Load


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
