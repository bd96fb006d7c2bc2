"""The decision of one stage at one step: a pure function of what is remembered and what is expected.

    what does not fit, is barred, or soon will not fit   is out
    the present choice is out                            -> the cheapest of the others, now: forced
    otherwise                                            -> the cheapest, if it saves more than the switch costs

"Cheapest" is the whole time until the advantage is expected to end, later switches included (outlook.py).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from earl.errors import EarlError
from earl.parallel.selector.inputs import AHEAD, Decision, Inputs
from earl.parallel.selector.outlook import Floats, totals, weights
from earl.parallel.selector.settings import Settings
from earl.parallel.selector.state import Left, StageState

CLEARLY = 0.02
"""A choice is clearly the fastest when it takes so much less than the one that was."""

LASTING = 16
"""Steps for which a choice has to fit to be gone back to."""


def decide(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    """What the stage runs in at this step, and the state after.

    Raises EarlError when no candidate fits.
    """
    after, decision = _decided(_watched(state, inputs), inputs)
    return after, replace(decision, state=state)


def _decided(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    if not any(one.fits for one in inputs.candidates):
        return _cornered(state, inputs)
    allowed = _allowed(inputs)
    counts = weights(_dwell(state, inputs.settings), inputs.remaining)
    total, costs = totals(inputs.candidates, counts, inputs.settings.margin)
    total = np.where(allowed, total, np.inf)
    present = next((n for n, one in enumerate(inputs.candidates) if one.choice == state.current), None)
    if present is None or not allowed[present]:
        best = int(np.argmin(total + costs))
        reason = "first" if state.current is None else "forced"
        return _taken(state, inputs, best, reason, _compelled(state, inputs))
    return _weighed(state, inputs, total, costs, present)


def _weighed(
    state: StageState, inputs: Inputs, total: Floats, costs: Floats, present: int
) -> tuple[StageState, Decision]:
    """The choice where the present one may stay."""
    against = np.where(np.arange(len(total)) == present, total, total + costs)
    wanted = int(np.argmin(against))
    best = int(np.argmin(np.where(_free(state, inputs), against, np.inf)))
    if wanted == present:
        return _taken(state, inputs, present, "stays", "no other choice saves more than the switch to it costs")
    saved = _saved(inputs, total, costs, present, best if best != present else wanted)
    if best != present:
        return _taken(state, inputs, best, "faster", saved)
    last = "it was left lately, and may not fit for long"
    if _rests(state, inputs):
        last = f"the last switch was at step {state.since}"
    elif state.backs:
        last = f"it was left lately, and step {state.backs[-1]} switched back already"
    return _taken(state, inputs, present, "held", f"{saved}; but {last}")


def _saved(inputs: Inputs, total: Floats, costs: Floats, present: int, other: int) -> str:
    better = inputs.candidates[other]
    now = inputs.candidates[present].seconds[0] - better.seconds[0]
    return (
        f"{better.choice} saves {now:.3g} s a step now and {total[present] - total[other]:.3g} s as long as that is "
        f"expected to last; the switch is weighed with {costs[other]:.3g} s"
    )


def _compelled(state: StageState, inputs: Inputs) -> str:
    """Why the present choice has to be left."""
    present = next((one for one in inputs.candidates if one.choice == state.current), None)
    if state.current is None:
        return "the cheapest of what fits"
    if present is None:
        return f"{state.current} is not among the candidates any more"
    ahead = AHEAD[present.fits]
    when = f"in {ahead} steps" if ahead else "now"
    return (
        f"{present.choice} does not fit contexts of {inputs.longest_tokens[present.fits]} tokens, expected {when}: "
        + (present.why_not)
    )


def _allowed(inputs: Inputs) -> NDArray[np.bool_]:
    """What fits for as long as a switch takes to come; where nothing does, what fits longest. [C]"""
    ahead = (
        inputs.settings.guard_steps if inputs.remaining is None else min(inputs.settings.guard_steps, inputs.remaining)
    )
    guard = sum(steps <= ahead for steps in AHEAD)
    fits = np.array([one.fits for one in inputs.candidates])
    return fits >= min(guard, int(fits.max()))


def _cornered(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    """Where nothing fits what may come: the present choice if contexts as they were fit, else the fastest of these."""
    left = [number for number, one in enumerate(inputs.candidates) if one.fits_seen]
    reasons = "; ".join(f"{one.choice}: {one.why_not}" for one in inputs.candidates)
    nothing = f"nothing fits contexts of {inputs.longest_tokens[0]} tokens ({reasons})"
    if not left:
        cure = "lower context.limit, or give the run more or larger devices"
        raise EarlError(f"{inputs.stage} at step {inputs.step}: {nothing}; {cure}")
    best = min(left, key=lambda n: (inputs.candidates[n].choice != state.current, inputs.candidates[n].seconds[0]))
    reason = "first" if state.current is None else "forced"
    return _taken(state, inputs, best, reason, f"{nothing}, but what was seen last does")


def _rests(state: StageState, inputs: Inputs) -> bool:
    return inputs.step - state.since < inputs.settings.rest_steps


def _free(state: StageState, inputs: Inputs) -> NDArray[np.bool_]:
    """What may be switched to although nothing forces a switch; the present choice always may stay. [C]

    What was left lately is gone back to once, and only if it fits for LASTING steps: else it would soon have to be left
    again.
    """
    recent = {one.choice for one in state.left}
    lasting = min(sum(steps <= LASTING for steps in AHEAD), max(one.fits for one in inputs.candidates))
    return np.array(
        [
            one.choice == state.current
            or not (_rests(state, inputs) or (one.choice in recent and (state.backs or one.fits < lasting)))
            for one in inputs.candidates
        ]
    )


def _watched(state: StageState, inputs: Inputs) -> StageState:
    """Count the decision, forget what lies too far back, and note whether the fastest choice is another now."""
    since = inputs.step - inputs.settings.back_steps
    state = replace(
        state,
        steps=state.steps + 1,
        left=tuple(one for one in state.left if one.step > since),
        backs=tuple(step for step in state.backs if step > since),
    )
    feasible = [one for one in inputs.candidates if one.fits]
    if not feasible:
        return state
    fastest = min(feasible, key=lambda one: one.seconds[0])
    last = next((one for one in feasible if state.fastest and one.choice == state.fastest[-1]), None)
    if fastest is last or (last and fastest.seconds[0] > (1 - CLEARLY) * last.seconds[0]):
        return state
    again = fastest.choice in state.fastest
    before = tuple(one for one in state.fastest if one != fastest.choice)
    return replace(state, fastest=(*before, fastest.choice), reversals=state.reversals + again)


def _dwell(state: StageState, settings: Settings) -> float:
    """How many steps an advantage is expected to last: the more often it came back, the fewer.

    Example:
        100 before anything is known; 200 steps later with 4 reversals (200 + 100) / (4 + 1) = 60
    """
    return (state.steps + settings.dwell_steps) / (state.reversals + 1)


def _taken(state: StageState, inputs: Inputs, number: int, reason: str, why: str) -> tuple[StageState, Decision]:
    choice = inputs.candidates[number].choice
    decision = Decision(inputs.step, inputs.stage, choice, state.current, reason, why, inputs, state)
    if choice == state.current:
        return state, decision
    left = state.left if state.current is None else (*state.left, Left(state.current, inputs.step))
    back = any(one.choice == choice for one in state.left)
    backs = (*state.backs, inputs.step) if back else state.backs
    return replace(state, current=choice, since=inputs.step, left=left, backs=backs), decision
