"""What a tracker is told, and what it has to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from earl.matches import MatchResult
from earl.runs.summary import FINAL

NOWHERE = -1
"""The step before the first: where a run begins that has no checkpoint."""
RESULTS = ("win", "draw", "loss", "illegal", "truncated")
"""The fractions of a match."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run as it is when its trackers begin.

    Example:
        Run("tictactoe-1", Path("runs/tictactoe-1"), {"env": {"name": "tictactoe"}}, begun=40, identity="9f2c61d0")
    """

    name: str
    folder: Path
    recipe: Mapping[str, Any]
    """The resolved recipe, section by section."""
    begun: int = NOWHERE
    """The step of the checkpoint from which it goes on: whatever came later is told again."""
    identity: str = ""
    """What this tracker called itself when the run began; empty in a new run."""

    def settings(self) -> Iterator[tuple[str, Any]]:
        """The recipe as pairs such as ("rollout.episodes", 384)."""
        for section, table in self.recipe.items():
            for key, value in table.items():
                yield f"{section}.{key}", value


@dataclass(frozen=True, slots=True)
class Record:
    """The numbers of one step."""

    step: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    """Seconds by stage."""
    matches: Sequence[MatchResult]
    phase: str
    """That of the matches; `FINAL` are those of the best weights, at the end."""

    def numbers(self) -> dict[str, float]:
        """Everything under one kind of name, for trackers that know only names and numbers.

        Example:
            {"reward": 0.4, "seconds/rollout": 1.2, "match/random/seat_0/win": 0.93}
        """
        result = {name: float(value) for name, value in self.metrics.items()}
        result |= {f"seconds/{stage}": float(seconds) for stage, seconds in self.timings.items()}
        group = FINAL if self.phase == FINAL else "match"
        for match in self.matches:
            head = f"{group}/{match.opponent}/seat_{match.seat}"
            result |= {f"{head}/{name}": float(getattr(match, name)) for name in RESULTS}
        return result


class Tracker(Protocol):
    """One place that numbers go to. It may raise whatever it likes; it is then switched off."""

    identity: str
    """By which it finds its records again when the run is resumed; may be empty."""
    where: str
    """Where to look at it, in words."""
    rewinds: bool
    """Whether it drops by itself what it holds of the steps after `Run.begun`. If not, it is not told them again:
    a resumed run repeats them identically."""

    def record(self, record: Record) -> None:
        """Keep the numbers of a step; NaN and infinity may be among them."""

    def event(self, step: int, kind: str, message: str) -> None:
        """Keep that something happened."""

    def close(self, state: str) -> None:
        """End: "finished", "stopped" (by request, to be resumed) or "failed"."""
