"""Settings, state, inputs and result of a decision: JSON values, so that a recorded decision can be repeated."""

from dataclasses import dataclass

from earl.parallel.layout import Choice, Stage
from earl.parallel.memory import Origin


@dataclass(frozen=True, slots=True)
class Settings:
    """How readily layouts are switched; the same for all stages."""

    margin: float = 0.5  # a switch has to save its cost and this share more
    dwell_steps: int = 100  # assumed duration of an advantage before the first reversals
    rest_steps: int = 5  # fewest steps between two unforced switches
    back_steps: int = 100
    """At most one unforced switch per so many steps goes back to a choice left within them."""
    guard_steps: int = 2
    """Look-ahead for memory, so that a forced switch comes in time."""
    longest_quantile: float = 0.95  # of the forecast of the longest context, which has to fit
    longest_margin: float = 1.05  # factor on that quantile


@dataclass(frozen=True, slots=True)
class Left:
    choice: Choice
    step: int
    lost_seconds: float = 0.0
    """Expected loss per step against its successor at that time; 0 if memory forced the switch."""
    unfit_tokens: int | None = None
    """The longest context expected soon that did not fit, if memory forced the switch."""


@dataclass(frozen=True, slots=True)
class StageState:
    """State of one stage; checkpoints hold it, so that a resumed run decides alike."""

    current: Choice | None = None
    since: int | None = None  # step of the last switch; None: there was none
    left: tuple[Left, ...] = ()  # choices that were left, each once, the latest last
    backs: tuple[int, ...] = ()  # steps of switches back
    steps: int = 0  # decisions so far
    fastest: tuple[Choice, ...] = ()
    """The choices that were clearly the fastest, in order, each once; the last is so now."""
    reversals: int = 0  # how often an earlier fastest choice became it again


AHEAD = (0, 1, 2, 4, 8, 16, 32, 64)  # steps after the present one for which candidates are compared


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice, and its expectation at each look-ahead."""

    choice: Choice
    seconds: tuple[float, ...]
    """Of the stage in a step. Candidates share its GPUs, so fewer seconds are more tokens per GPU and second."""
    origin: Origin  # of the seconds
    fits: int
    """Number of look-aheads, from now on, at which it fits; 0: it may not be taken now."""
    futures: tuple[int, ...]  # the same in each of the equally likely futures
    fits_seen: bool
    """Whether it fits the last seen contexts, without a margin for growth."""
    why_not: str
    """The obstacle at the first look-ahead at which it does not fit; empty if it always fits."""
    cost_seconds: float  # of a switch to it from any other choice


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a decision depends on, apart from the state."""

    step: int
    stage: Stage
    sequences: int
    mean_tokens: tuple[float, ...]  # expected mean context by look-ahead
    longest_tokens: tuple[int, ...]  # longest context to prepare for, by look-ahead
    remaining: int | None  # steps of the run after this one; None: unknown
    candidates: tuple[Candidate, ...]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for a stage at a step, and why."""

    step: int
    stage: Stage
    choice: Choice
    before: Choice | None  # the earlier choice; None at the first decision
    reason: str  # one of REASONS
    why: str  # the reason with its numbers
    inputs: Inputs
    state: StageState  # before the decision

    @property
    def switched(self) -> bool:
        return self.before is not None and self.choice != self.before


REASONS = {
    "first": "the first choice",
    "stays": "no other is faster by enough",
    "faster": "saves more than the switch costs",
    "forced": "the present one does not fit, or soon will not",
    "held": "another would be faster, but it was left too recently",
}
