"""What a stage's decisions remember: a value that a checkpoint holds, so that a resumed run decides alike."""

from dataclasses import asdict, dataclass
from typing import Any

from earl.parallel.choice import Choice


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
