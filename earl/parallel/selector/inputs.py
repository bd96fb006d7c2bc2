"""What a decision is made from, and what it is: values that JSON holds, so that it can be made again from a record."""

from dataclasses import asdict, dataclass
from typing import Any

from earl.parallel.choice import Choice, Stage
from earl.parallel.estimate import Origin
from earl.parallel.selector.settings import Settings
from earl.parallel.selector.state import StageState

AHEAD = (0, 1, 2, 4, 8, 16, 32, 64)
"""Steps after the present one for which candidates are compared."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice, and what is expected of it at each look-ahead."""

    choice: Choice
    seconds: tuple[float, ...]
    """Of a whole step of the stage. All candidates share the stage's GPUs, so the fewest seconds are the most tokens
    per GPU and second."""
    origin: Origin
    """Of the seconds."""
    fits: int
    """At how many look-aheads, from now on, it fits: 0 means that it may not be taken now."""
    futures: tuple[int, ...]
    """The same in each of the futures that are equally likely (room.py)."""
    fits_seen: bool
    """Whether it fits what was seen last, without any room for growth: what is left where nothing else fits."""
    why_not: str
    """What is in the way at the first look-ahead at which it does not fit; empty when there is none."""
    cost_seconds: float
    """To switch to it from any other choice."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that one decision is made from, apart from the state."""

    step: int
    stage: Stage
    sequences: int
    mean_tokens: tuple[float, ...]
    """Mean context expected at each look-ahead."""
    longest_tokens: tuple[int, ...]
    """Longest context to be prepared for at each look-ahead."""
    remaining: int | None
    """Steps of the run after this one; None: not known."""
    candidates: tuple[Candidate, ...]
    settings: Settings

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a stage runs in at a step, and why.

    Example:
        Decision(112, "update", dp2 tp2, before=dp4 tp1, reason="faster", why="dp2 tp2 saves …", inputs, state)
    """

    step: int
    stage: Stage
    choice: Choice
    before: Choice | None
    """What it ran in until now; None at the first decision."""
    reason: str
    """One of REASONS."""
    why: str
    """The reason with its numbers."""
    inputs: Inputs
    state: StageState
    """What was remembered when it was made."""

    @property
    def switched(self) -> bool:
        """Whether the stage has to be laid out anew."""
        return self.before is not None and self.choice != self.before


REASONS = {
    "first": "the first choice",
    "stays": "no other is faster by enough",
    "faster": "saves more than the switch costs",
    "forced": "the present one does not fit, or soon will not",
    "held": "another would be faster, but it was left too recently",
}
