"""The interface of a tracker, and the records it gets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from earl.matches import FRACTIONS
from earl.observer import RecordedStep
from earl.runs.summary import FINAL

NOWHERE = -1
"""The step before the first: the start of a run without a checkpoint."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run at the time its trackers start."""

    name: str
    folder: Path
    recipe: Mapping[str, Any]
    begun: int = NOWHERE
    """The step of the checkpoint that the run resumes from; later steps are recorded again."""
    identity: str = ""
    """This tracker's `identity` when the run began; empty in a new run."""
    port: int = 0
    """`track.prometheus_port`; 0 is any free one."""

    def settings(self) -> Iterator[tuple[str, Any]]:
        """The recipe as pairs such as ("rollout.episodes", 384)."""
        for section, table in self.recipe.items():
            for key, value in table.items():
                yield f"{section}.{key}", value


def flat_numbers(record: RecordedStep) -> dict[str, float]:
    """All numbers of a step, with keys such as "reward", "seconds/rollout" and "match/random/seat_0/win"."""
    result = {name: float(value) for name, value in record.metrics.items()}
    result |= {f"seconds/{stage}": float(seconds) for stage, seconds in record.timings.items()}
    group = FINAL if record.phase == FINAL else "match"
    for match in record.matches:
        head = f"{group}/{match.opponent}/seat_{match.seat}"
        result |= {f"{head}/{name}": float(getattr(match, name)) for name in FRACTIONS}
    return result


class Tracker(Protocol):
    """A destination for numbers. It may raise any exception; it is then switched off."""

    identity: str
    """Lets the tracker find its records again when the run is resumed; may be empty."""
    where: str
    """How to look at the records, as text."""
    rewinds: bool
    """Whether it drops its records after `TrackedRun.begun`. If not, these steps, which are identical, are not sent."""

    def record(self, record: RecordedStep) -> None:
        """Store the numbers of a step, which may include NaN and infinity."""

    def event(self, step: int, kind: str, message: str) -> None:
        """Store an event."""

    def close(self, state: str) -> None:
        """Close with "finished", "stopped" (by request, can be resumed) or "failed"."""
