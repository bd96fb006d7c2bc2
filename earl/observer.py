"""Observers of a run, such as the progress bar and the trackers. Only the first process has observers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from earl.matches import MatchResult


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What was recorded of a step that is done."""

    step: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]  # seconds by stage
    matches: Sequence[MatchResult]
    phase: str  # of the matches; "final" for those of the best weights, at the end


class Observer(Protocol):
    """Receives everything that is written to the run's database, in the same order."""

    def step(self, record: RecordedStep) -> None:
        """A step is done and recorded."""

    def event(self, step: int, kind: str, message: str) -> None:
        """An event, such as a better evaluation or a raised limit."""

    def stopping(self) -> None:
        """A stop was requested and follows after the step; called in a thread of its own."""


class Observers:
    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def step(self, record: RecordedStep) -> None:
        for observer in self._observers:
            observer.step(record)

    def event(self, *told: Any) -> None:
        for observer in self._observers:
            observer.event(*told)

    def stopping(self) -> None:
        for observer in self._observers:
            observer.stopping()
