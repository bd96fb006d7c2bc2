"""Observers of a run, such as the progress bar and the trackers. Only the first process has observers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from earl.matches import MatchResult


class Observer(Protocol):
    """Receives everything that is written to the run's database, in the same order."""

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult],
        phase: str,
    ) -> None:
        """A step is done and recorded; timings are seconds by stage, `phase` is that of the matches."""

    def event(self, step: int, kind: str, message: str) -> None:
        """An event, such as a better evaluation or a raised limit."""

    def stopping(self) -> None:
        """A stop was requested and follows after the step; called by the signal handler."""


class Observers:
    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def step(self, *recorded: Any) -> None:
        for observer in self._observers:
            observer.step(*recorded)

    def event(self, *told: Any) -> None:
        for observer in self._observers:
            observer.event(*told)

    def stopping(self) -> None:
        for observer in self._observers:
            observer.stopping()
