"""Where a run stands, between its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from earl import evaluate
from earl.config import Config
from earl.context.limit import ContextWatch
from earl.errors import EarlError
from earl.matches import MatchResult

NEVER = (float("-inf"), float("-inf"))


@dataclass(slots=True)
class Progress:
    """Where a run stands: all that a checkpoint holds beside tensors.

    Every checkpoint is of a run that goes on, so there `finished` is always false.
    """

    step: int = 0
    best_step: int = 0
    best: tuple[float, float] = NEVER
    finished: bool = False
    saved: int = -1
    """The step of the last checkpoint that was due."""
    skipped: int = 0
    """Steps in a row, up to this one, of which nothing could be learned: loss or gradient were not finite."""
    context: ContextWatch = field(default_factory=lambda: ContextWatch(0))
    layouts: dict[str, Any] = field(default_factory=dict)
    """What the selector remembers; see `earl.layouts`."""

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Self:
        """What a checkpoint holds. Raises EarlError when it is something else."""
        try:
            return TypeAdapter(cls).validate_python(state)
        except ValidationError as error:
            place, fault = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            raise EarlError(
                f"the checkpoint's state is not one that earl saved ({place}: {fault}); delete the checkpoint, then "
                "continue with --resume"
            ) from None

    def better(self, results: Sequence[MatchResult]) -> bool:
        """Whether results are the best so far; they are then remembered."""
        strength = evaluate.strength(results)
        if strength <= self.best:
            return False
        self.best, self.best_step = strength, self.step
        return True


def phase_of(config: Config, step: int) -> str:
    """What a step's matches belong to: "start", "warm_start" or "train"; "final" is the best weights' own."""
    if step == 0:
        return "start"
    return "warm_start" if step <= config.warm_start.steps else "train"


def due(step: int, every: int, last: int) -> bool:
    """Whether something that is done every so many steps, and at the last, is done at this one."""
    return step % every == 0 or step == last
