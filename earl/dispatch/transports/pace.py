"""Which of several ways is fastest: from what each is expected to take, and from what they took before. Pure.

expected seconds × what a way took over what was expected of it ─▶ the least
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

TRIALS = 3
"""Times that a way is taken before it is judged: the first one makes connections, and meets memory that is new."""
KEPT = 5
"""The last times that count."""
WORTH = 3.0
"""A way that is expected to take more than so many times the least is not tried."""
AGAIN = 25
"""Every so often another way that may be as fast is tried again: what is moved grows, and links change."""


@dataclass(slots=True)
class Pace:
    """What ways took.

    Example:
        pace.pick({"objects": 0.004, "peers": 0.003})   # "peers"; then pace.took("peers", 0.003, 0.006)
    """

    _ratios: dict[str, list[float]] = field(default_factory=dict)
    _picks: int = 0

    def pick(self, expected: Mapping[str, float]) -> str:
        """The way to take now. Ways that might be the fastest are tried in turn before one is settled on."""
        seconds = self.seconds(expected)
        best = min(seconds, key=lambda way: seconds[way])
        worth = [way for way in expected if seconds[way] <= WORTH * seconds[best]]
        self._picks += 1
        if untried := [way for way in worth if self._times(way) < TRIALS]:
            return min(untried, key=self._times)
        others = [way for way in worth if way != best]
        if others and self._picks % AGAIN == 0:
            return min(others, key=lambda way: seconds[way])
        return best

    def settled(self, expected: Mapping[str, float]) -> str | None:
        """The way that is taken but for trials; None: that is not known yet."""
        seconds = self.seconds(expected)
        best = min(seconds, key=lambda way: seconds[way])
        tried = all(self._times(way) >= TRIALS for way in expected if seconds[way] <= WORTH * seconds[best])
        return best if tried else None

    def took(self, way: str, expected: float, seconds: float) -> None:
        """Remember."""
        self._ratios[way] = [*self._ratios.get(way, []), seconds / expected][-KEPT:]

    def seconds(self, expected: Mapping[str, float]) -> dict[str, float]:
        """What each way is expected to take, after what it took before; not tried: what is expected of it alone."""
        return {way: own * (median(self._ratios[way]) if way in self._ratios else 1.0) for way, own in expected.items()}

    def _times(self, way: str) -> int:
        return len(self._ratios.get(way, []))
