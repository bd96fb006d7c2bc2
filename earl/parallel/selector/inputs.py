"""What a decision is made from, and what it is: values that JSON holds, so that it can be made again from a record."""

from dataclasses import asdict, dataclass
from typing import Any

from earl.parallel.layout import Choice, Stage
from earl.parallel.memory import Origin

# How readily layouts are switched.


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the decision; the same for all stages."""

    margin: float = 0.5
    """A switch has to save its cost and this share of it beside."""
    dwell_steps: int = 100
    """How long an advantage is expected to last before anything is known: loads change their direction that often."""
    rest_steps: int = 5
    """Fewest steps from one switch to the next that nothing forces."""
    back_steps: int = 100
    """Of so many steps at most one switches back to what was left within them, unless memory forces it."""
    guard_steps: int = 2
    """A choice has to fit the contexts expected so many steps ahead, so that a switch comes in time."""
    longest_quantile: float = 0.95
    """Of the forecast of the longest context, which has to fit."""
    longest_margin: float = 1.05
    """Times that quantile."""


# What a stage's decisions remember: a value that a checkpoint holds, so that a resumed run decides alike.


@dataclass(frozen=True, slots=True)
class Left:
    """A choice that was left."""

    choice: Choice
    step: int
    lost_seconds: float = 0.0
    """Of a step: what it took more than what it was left for, as expected then; 0 where memory forced it."""
    unfit_tokens: int | None = None
    """Where memory forced it: the longest context expected soon, which it did not fit."""


@dataclass(frozen=True, slots=True)
class StageState:
    """Where one stage stands."""

    current: Choice | None = None
    since: int | None = None
    """The step of the last switch; None: there was none."""
    left: tuple[Left, ...] = ()
    """What was left, each once, the latest last."""
    backs: tuple[int, ...] = ()
    """Steps of switches back."""
    steps: int = 0
    """Decisions so far."""
    fastest: tuple[Choice, ...] = ()
    """The choices that were clearly the fastest, one after the other, each once; the last is so now."""
    reversals: int = 0
    """How often one became the fastest again that had been before."""

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "StageState":
        """What `as_object` made, also after JSON turned tuples into lists."""
        return cls(
            current=fields["current"] and Choice.of(fields["current"]),
            since=fields["since"],
            left=tuple(Left(**{**one, "choice": Choice.of(one["choice"])}) for one in fields["left"]),
            backs=tuple(fields["backs"]),
            steps=fields["steps"],
            fastest=tuple(map(Choice.of, fields["fastest"])),
            reversals=fields["reversals"],
        )


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
