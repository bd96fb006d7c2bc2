"""Picks the faster transport from the seconds that transfers took."""

from collections import deque
from statistics import median

TRIALS = 3
"""Transfers by each transport before one is chosen: the first makes connections and touches new memory."""
KEPT = 31
"""Measurements kept per transport."""
LOWER = 0.95
"""Another transport is chosen when its median is below this fraction of the chosen one's: fewer changes by noise."""
AGAIN = 25
"""Every this many picks another transport is tried again: transfers grow, and links change."""


class Pace:
    def __init__(self, *ways: str) -> None:
        self._took: dict[str, deque[float]] = {way: deque(maxlen=KEPT) for way in ways}
        self._picks = 0
        self.chosen = ""  # until every transport was tried

    def pick(self) -> str:
        """The transport to use now."""
        self._picks += 1
        if self.chosen and self._picks % AGAIN:
            return self.chosen
        others = [way for way in self._took if way != self.chosen]
        return min(others, key=lambda way: len(self._took[way]))

    def took(self, way: str, seconds: float) -> None:
        self._took[way].append(seconds)
        if all(len(own) >= TRIALS for own in self._took.values()):
            medians = self.medians
            least = min(medians, key=lambda way: medians[way])
            if not self.chosen or medians[least] < LOWER * medians[self.chosen]:
                self.chosen = least

    @property
    def medians(self) -> dict[str, float]:
        """Seconds of each transport that was used."""
        return {way: median(own) for way, own in self._took.items() if own}
