"""Which of several ways is fastest: from what each is expected to take, and from what they took before. Pure.

expected seconds × what a way took over what was expected of it ─▶ the least
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

TRIALS = 3
"""Times that a way is taken before it is judged: the first one makes connections, and meets memory that is new."""
KEPT = 31
"""The last times that count; as often a way is tried at most that may be the fastest."""
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
        best = self.best(expected)
        self._picks += 1
        if doubtful := self._doubtful(expected):
            return min(doubtful, key=self._times)
        others = [way for way in expected if way != best and seconds[way] <= WORTH * seconds[best]]
        if others and self._picks % AGAIN == 0:
            return min(others, key=lambda way: seconds[way])
        return best

    def best(self, expected: Mapping[str, float]) -> str:
        """The way that is the fastest, as far as is known."""
        seconds = self.seconds(expected)
        return min(seconds, key=lambda way: seconds[way])

    def settled(self, expected: Mapping[str, float]) -> str | None:
        """The way that is taken but for trials; None: that is not known yet."""
        return None if self._doubtful(expected) else self.best(expected)

    def took(self, way: str, expected: float, seconds: float) -> None:
        """Remember."""
        self._ratios[way] = [*self._ratios.get(way, []), seconds / expected][-KEPT:]

    def seconds(self, expected: Mapping[str, float]) -> dict[str, float]:
        """What each way is expected to take, after what it took before; not tried: what is expected of it alone."""
        return {way: self._quantile(way, own, 0.5) for way, own in expected.items()}

    def _doubtful(self, expected: Mapping[str, float]) -> list[str]:
        """Ways to be tried: hardly known, or together with the fastest not told apart from it."""
        seconds, best = self.seconds(expected), self.best(expected)
        worth = [way for way in expected if seconds[way] <= WORTH * seconds[best]]
        if untried := [way for way in worth if self._times(way) < TRIALS]:
            return untried
        most = self._quantile(best, expected[best], 0.75)
        close = [way for way in worth if way != best and self._quantile(way, expected[way], 0.25) < most]
        return [way for way in (best, *close) if self._times(way) < KEPT] if close else []

    def _quantile(self, way: str, expected: float, share: float) -> float:
        return expected * (float(np.quantile(self._ratios[way], share)) if way in self._ratios else 1.0)

    def _times(self, way: str) -> int:
        return len(self._ratios.get(way, []))
