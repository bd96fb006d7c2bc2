"""Who watches a run while it goes on: the bar in the terminal, the trackers. The first process alone has observers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from earl.matches import MatchResult


class Observer(Protocol):
    """Is told all that the run's database is told, in the same order."""

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult],
        phase: str,
    ) -> None:
        """A step is done and written down; timings are seconds by stage, `phase` is that of the matches."""

    def event(self, step: int, kind: str, message: str) -> None:
        """Something happened, such as a better evaluation or a limit that was raised."""

    def stopping(self) -> None:
        """A stop was asked for and comes after the step; called by the signal's handler."""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult],
        phase: str,
    ) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.step(step, metrics, timings, matches, phase)

    def event(self, step: int, kind: str, message: str) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.event(step, kind, message)

    def stopping(self) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.stopping()
