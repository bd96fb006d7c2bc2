"""Recorded decisions, and their repetition from the record."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.parallel.layout import Stage
from earl.parallel.selector.decide import decide
from earl.parallel.selector.inputs import Decision, Inputs, Settings, StageState

_STATE, _INPUTS = TypeAdapter(StageState), TypeAdapter(Inputs)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded decision, and the decision from the same inputs now."""

    step: int
    stage: Stage
    recorded: str  # the choice in words
    again: Decision

    @property
    def same(self) -> bool:
        return str(self.again.choice) == self.recorded


def text_of(decision: Decision) -> str:
    """The inputs of a decision as JSON; numbers survive to the bit."""
    made_from = {"inputs": asdict(decision.inputs), "state": asdict(decision.state)}
    return json.dumps(made_from, separators=(",", ":"))


def made_from(text: str) -> tuple[StageState, Inputs]:
    """Inverse of `text_of`. Raises EarlError for invalid text."""
    try:
        fields = parse_json_object(text.encode())
        return _STATE.validate_python(fields["state"]), _INPUTS.validate_python(fields["inputs"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> EarlError:
    fault = str(error).partition("\n")[0] or type(error).__name__
    return EarlError(f"a decision's inputs cannot be read ({fault}); the run is of another earl, use that one")


def replayed(recorded: Sequence[tuple[str, str]], **other: float) -> list[Replayed]:
    """Repeat recorded decisions, given as (choice in words, inputs as JSON) in order; `other` replaces settings.

    After a different choice, later decisions follow the replay's own state. Measurements stay as recorded: times of
    choices that the run never took are still predictions.
    """
    states: dict[Stage, StageState] = {}
    result = []
    for choice, text in recorded:
        begun, inputs = made_from(text)
        settings: Settings = replace(inputs.settings, **other)  # type: ignore[arg-type]
        inputs = replace(inputs, settings=settings)
        try:
            state, again = decide(states.get(inputs.stage, begun), inputs)
        except (ArithmeticError, LookupError, ValueError, StopIteration) as error:
            raise _unreadable(error) from None
        states[inputs.stage] = state
        result.append(Replayed(inputs.step, inputs.stage, choice, again))
    return result


def expected_seconds(decisions: Sequence[Decision]) -> float:
    """Expected total seconds of decisions, switches included, by the expectation when each step began."""
    total = 0.0
    for decision in decisions:
        taken = next(one for one in decision.inputs.candidates if one.choice == decision.choice)
        total += taken.seconds[0] + (taken.cost_seconds if decision.switched else 0.0)
    return total
