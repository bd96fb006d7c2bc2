"""The Parallelism Selector of a run: records events, and chooses each stage's layout before it begins.

record_load(step, load)    -> contexts, forecast
measured(choice, …)        -> predictions of all choices are corrected
out_of_memory(choice, …)   -> the choice is barred
switched(choice, …)        -> cost of a switch
decide(stage, step)        -> Inputs, a value ─▶ the pure decision (decide.py) ─▶ Decision
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import TypeAdapter

from earl.context.forecast import outlook
from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.parallel.layout import STAGES, Choice, Stage, bucket_of
from earl.parallel.memory import Load, Origin
from earl.parallel.profile import SURE, SURE_NOW, Cells, add_measurement, correction, place_of
from earl.parallel.selector.decide import AHEAD, Candidate, Decision, Floats, Inputs, Settings, StageState, decide


class Costs(Protocol):
    """Predicted costs of choices, which depend only on the arguments."""

    def seconds(self, choice: Choice, load: Load) -> float:
        """Time of a stage in a step. Only ratios between choices need to be right: measurements correct the rest."""

    def obstacle(self, choice: Choice, load: Load) -> str:
        """Why it does not fit, such as "30.2 GiB of 24.0 GiB"; empty if it fits. Shorter contexts fit as well."""


KEPT_STEPS = 200  # steps of contexts that forecasts use


@dataclass(frozen=True, slots=True)
class OomBan:
    """A choice that ran out of memory: excluded for this bucket and all above."""

    choice: Choice
    load: Load
    step: int

    def covers(self, choice: Choice, load: Load) -> bool:
        bucket, own = (bucket_of(one.longest_tokens, one.sequences) for one in (load, self.load))
        return choice == self.choice and bucket.context >= own.context and bucket.load >= own.load


class SwitchCost(NamedTuple):
    choice: Choice
    times: int = 0
    seconds: float = 0.0  # of all switches to it


@dataclass(slots=True)
class Memory:
    """Everything that decisions depend on, besides predictions."""

    loads: list[tuple[int, Load]] = field(default_factory=list)  # in order of step
    cells: dict[Stage, Cells] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    barred: list[OomBan] = field(default_factory=list)
    switches: list[SwitchCost] = field(default_factory=list)  # each choice once
    stages: dict[Stage, StageState] = field(default_factory=lambda: {stage: StageState() for stage in STAGES})

    def switch_cost(self, choice: Choice) -> SwitchCost:
        return next((own for own in self.switches if own.choice == choice), SwitchCost(choice))


_MEMORY = TypeAdapter(Memory)


class Fitting(NamedTuple):
    """Number of look-aheads at which a choice fits, the same in each future, and the obstacle at the next."""

    fits: int
    futures: tuple[int, ...]
    why_not: str


FUTURES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of the forecast, each the middle of a fifth of the futures."""


def longest_contexts(history: Sequence[tuple[int, float]], ahead: Sequence[int], settings: Settings) -> Floats:
    """Tokens of the longest context, by look-ahead: those to prepare for, and in each of FUTURES. [1 + F, P]

    The far upper end is rarely reached, so excluding a layout because of it would waste its advantage in most
    futures. Up to `guard_steps` all rows are equal; from there on a future is scaled by the ratio of upper end to
    median at that point. `history` is (step, longest context); `ahead` are steps after its last, for each of AHEAD
    [P].
    """
    median, upper, *futures = outlook(history, ahead, (0.5, settings.longest_quantile, *FUTURES)).T
    upper = upper * np.where(np.array(ahead) > 0, settings.longest_margin, 1.0)
    soon = num_guarded(settings)
    spread = upper[soon - 1] / max(1.0, median[soon - 1])
    rows = [upper, *(np.where(np.arange(len(AHEAD)) < soon, upper, spread * own) for own in futures)]
    return np.maximum.accumulate(rows, axis=1)


def num_guarded(settings: Settings) -> int:
    """Number of look-aheads at which a choice has to fit the upper end."""
    return sum(steps <= settings.guard_steps for steps in AHEAD)


class Selector:
    def __init__(
        self,
        candidates: Mapping[Stage, Sequence[Choice]],
        costs: Costs,
        switch_seconds: Mapping[Stage, float],
        settings: Settings | None = None,
        steps: int | None = None,
    ) -> None:
        """`candidates` are the choices of each stage; `steps` is the last step of the run, if known.
        `switch_seconds` is the assumed cost of a switch; it weighs as much as one measurement."""
        self._candidates, self._costs = dict(candidates), costs
        self._switch_seconds, self._settings, self._steps = dict(switch_seconds), settings or Settings(), steps
        self._soon = num_guarded(self._settings)
        self._memory = Memory()

    def record_load(self, step: int, load: Load) -> None:
        """Record the contexts of a step, or before the first the expected ones; `limit_tokens` is the present limit."""
        before = [(own, known) for own, known in self._memory.loads if own < step]
        self._memory.loads = [*before, (step, load)][-KEPT_STEPS:]

    def measured(self, choice: Choice, load: Load, seconds: float) -> None:
        stage = choice.stage
        predicted = self._costs.seconds(choice, load)
        self._memory.cells[stage] = add_measurement(self._memory.cells[stage], choice, load, seconds, predicted)

    def out_of_memory(self, choice: Choice, load: Load, step: int) -> None:
        """Bar a choice for such contexts and loads and above; a repetition of this step expects them again."""
        self._memory.barred.append(OomBan(choice, load, step))

    def switched(self, choice: Choice, seconds: float) -> None:
        before = self._memory.switch_cost(choice)
        others = [own for own in self._memory.switches if own.choice != choice]
        self._memory.switches = [*others, SwitchCost(choice, before.times + 1, before.seconds + seconds)]

    def decide(self, stage: Stage, step: int) -> Decision:
        """The stage's choice at this step. Raises EarlError when no candidate fits."""
        state, decision = decide(self._memory.stages[stage], self.inputs(stage, step))
        self._memory.stages[stage] = state
        return decision

    def inputs(self, stage: Stage, step: int) -> Inputs:
        """The inputs of a stage's next decision. `record_load` must have been called."""
        loads, *futures = self._loads(step)
        choices = self._candidates[stage]
        tokens, sequences = [load.mean_tokens for load in loads], loads[0].sequences
        typical = self._typical(tokens)
        predicted = np.array([[self._costs.seconds(choice, load) for load in typical] for choice in choices])
        prepared = [_never_shrinking(own) for own in (loads, *futures)]
        rooms = {choice: self._room(choice, prepared) for choice in choices}
        current, cells = self._memory.stages[stage].current, self._memory.cells[stage]
        tried = {cell.choice for cell in cells}
        offered = [
            number
            for number, one in enumerate(choices)
            if one == current or one in tried or not _needless(one, rooms, self._soon)
        ]
        logs = np.log(predicted[:, 0])
        found = correction(cells, {choices[one]: float(logs[one]) for one in offered if rooms[choices[one]].fits})
        places = np.array([place_of(one, sequences) for one in tokens])
        seconds = predicted * np.exp(found.at(choices, places))
        met = self._met(step)
        candidates = []
        for one, own in ((choices[number], seconds[number].tolist()) for number in offered):
            telling = found.telling(one, places, SURE_NOW if one == current else SURE)
            origin: Origin = "measured" if one in tried else "predicted"
            candidates.append(self._candidate(one, own, origin, telling, rooms[one], met))
        return Inputs(
            step,
            stage,
            sequences,
            tuple(tokens),
            tuple(load.longest_tokens for load in loads),
            None if self._steps is None else max(self._steps - step, 0),
            tuple(candidates),
            self._settings,
        )

    def state(self) -> dict[str, Any]:
        return asdict(self._memory)

    def restore(self, state: dict[str, Any]) -> None:
        self._memory = _MEMORY.validate_python(state)

    def _loads(self, step: int) -> list[list[Load]]:
        """Expected loads by look-ahead: the median of the mean; of the longest, each row of `longest_contexts`."""
        last, load = self._memory.loads[-1][0], self._met(step)
        ahead = [step - last + steps for steps in AHEAD]
        means = outlook([(own, known.mean_tokens) for own, known in self._memory.loads], ahead, (0.5,))[:, 0]
        longest = [(own, float(known.longest_tokens)) for own, known in self._memory.loads]
        capped = np.minimum(longest_contexts(longest, ahead, self._settings), load.limit_tokens)
        capped = np.maximum(capped, load.longest_tokens) if self._failed(step) else capped
        return [
            [
                replace(load, mean_tokens=max(1.0, min(mean, most)), longest_tokens=int(most))
                for mean, most in zip(means.tolist(), row, strict=True)
            ]
            for row in capped.tolist()
        ]

    def _typical(self, means: Sequence[float]) -> list[Load]:
        """Loads of these mean contexts, with the longest as far above the mean as in the last one."""
        last = self._memory.loads[-1][1]
        above = last.longest_tokens / max(1.0, last.mean_tokens)
        return [replace(last, mean_tokens=mean, longest_tokens=max(1, round(above * mean))) for mean in means]

    def _met(self, step: int) -> Load:
        """The last load, and those that ran out of memory at this step, which is to be repeated."""
        load = self._memory.loads[-1][1]
        for failed in self._failed(step):
            most = max(load.longest_tokens, failed.longest_tokens)
            load = replace(load, longest_tokens=most, sequences=max(load.sequences, failed.sequences))
        return load

    def _failed(self, step: int) -> list[Load]:
        return [one.load for one in self._memory.barred if one.step == step]

    def _room(self, choice: Choice, loads: Sequence[Sequence[Load]]) -> Fitting:
        fits, why_not = self._fits(choice, loads[0])
        futures = [fits] * (len(loads) - 1)
        if fits >= self._soon:  # until then all futures are equal
            least = self._soon
            for number in reversed(range(len(futures))):  # shorter contexts fit at least as long
                futures[number] = least = self._fits(choice, loads[1 + number], least)[0]
        return Fitting(fits, tuple(futures), why_not)

    def _candidate(
        self, choice: Choice, seconds: list[float], origin: Origin, telling: tuple[float, ...], room: Fitting, met: Load
    ) -> Candidate:
        known = self._memory.switch_cost(choice)
        cost = (self._switch_seconds[choice.stage] + known.seconds) / (1 + known.times)
        seen = room.fits > 0 or not self.obstacle(choice, met)
        return Candidate(choice, tuple(seconds), origin, *room[:2], seen, room.why_not, cost, telling)

    def _fits(self, choice: Choice, loads: Sequence[Load], low: int = 0) -> tuple[int, str]:
        """Number of look-aheads, at least `low`, at which it fits, and the obstacle at the next: found by bisection."""
        high, why_not = len(loads), ""
        middle = high - 1  # most choices fit always
        while low < high:
            obstacle = self.obstacle(choice, loads[middle])
            low, high, why_not = (low, middle, obstacle) if obstacle else (middle + 1, high, why_not)
            middle = (low + high) // 2
        return low, why_not

    def obstacle(self, choice: Choice, load: Load) -> str:
        """Why a choice may not be taken for a load; empty if it may."""
        barred = next((one for one in self._memory.barred if one.covers(choice, load)), None)
        if barred:
            return f"it ran out of memory at step {barred.step} with contexts of {barred.load.longest_tokens} tokens"
        return self._costs.obstacle(choice, load)


def _needless(one: Choice, rooms: Mapping[Choice, Fitting], soon: int) -> bool:
    """Whether it does the work of another one that fits now, and recomputes or offloads besides: that only adds to it,
    whatever is predicted."""
    if not (one.recompute or one.offload):
        return False
    return any(
        other != one
        and room.fits >= min(rooms[one].fits, soon)
        and other == replace(one, recompute=other.recompute, offload=other.offload)
        and other.recompute <= one.recompute
        and other.offload <= one.offload
        for other, room in rooms.items()
    )


def _never_shrinking(loads: Sequence[Load]) -> list[Load]:
    """Replace means by their running maximum, as memory is prepared for it."""
    largest = np.maximum.accumulate([load.mean_tokens for load in loads]).tolist()
    return [replace(load, mean_tokens=mean) for load, mean in zip(loads, largest, strict=True)]


_STATE_FORM, _INPUTS = TypeAdapter(StageState), TypeAdapter(Inputs)


def inputs_to_json(decision: Decision) -> str:
    """The inputs of a decision as JSON; numbers survive to the bit."""
    made_from = {"inputs": asdict(decision.inputs), "state": asdict(decision.state)}
    return json.dumps(made_from, separators=(",", ":"))


def inputs_from_json(text: str) -> tuple[StageState, Inputs]:
    """Inverse of `inputs_to_json`. Raises EarlError for invalid text."""
    try:
        fields = parse_json_object(text.encode())
        return _STATE_FORM.validate_python(fields["state"]), _INPUTS.validate_python(fields["inputs"])
    except (ValueError, KeyError, TypeError) as error:
        fault = str(error).partition("\n")[0] or type(error).__name__
        raise EarlError(
            f"a decision's inputs cannot be read ({fault}); the run is of another earl, use that one"
        ) from None
