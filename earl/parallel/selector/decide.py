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
from earl.parallel.selector.returns import hindrance, left, recent, risks
from earl.parallel.selector.state import StageState
from earl.parallel.selector.watch import dwell_steps, watched


def decide(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    """What the stage runs in at this step, and the state after.

    Raises EarlError when no candidate fits.
    """
    after, decision = _decided(watched(state, inputs), inputs)
    return after, replace(decision, state=state)


def _decided(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    if not any(one.fits for one in inputs.candidates):
        return _cornered(state, inputs)
    allowed = _allowed(inputs)
    dwell = dwell_steps(state, inputs.settings)
    counts = weights(dwell, inputs.remaining)
    margin = 1 + inputs.settings.margin
    costs = margin * np.array([one.cost_seconds for one in inputs.candidates])
    total = np.where(allowed, totals(inputs.candidates, counts, costs), np.inf)
    present = next((n for n, one in enumerate(inputs.candidates) if one.choice == state.current), None)
    if present is None or not allowed[present]:
        best = int(np.argmin(total + costs))
        reason = "first" if state.current is None else "forced"
        return _taken(state, inputs, best, reason, _compelled(state, inputs))
    risked = costs + risks(state, inputs, dwell)
    with_risks = np.where(allowed, totals(inputs.candidates, counts, risked), np.inf)
    safe = _cheapest(with_risks, risked, present)
    return _weighed(state, inputs, total, costs, present, safe)


def _weighed(
    state: StageState, inputs: Inputs, total: Floats, costs: Floats, present: int, safe: int
) -> tuple[StageState, Decision]:
    """The choice where the present one may stay; `safe` is the cheapest with what its risks cost.

    Where the cheapest cannot be taken, none that is only nearly as good is taken for it.
    """
    wanted = _cheapest(total, costs, present)
    if wanted == present:
        return _taken(state, inputs, present, "stays", "no other choice saves more than the switch to it costs")
    better = inputs.candidates[wanted]
    now = inputs.candidates[present].seconds[0] - better.seconds[0]
    saved = (
        f"{better.choice} saves {now:.3g} s a step now and {total[present] - total[wanted]:.3g} s as long as that is "
        f"expected to last; the switch is weighed with {costs[wanted]:.3g} s"
    )
    but = hindrance(state, inputs, wanted, now, float(costs[wanted]))
    if not but and safe != wanted:
        but = "the load may turn again before it could be left"
    if but:
        return _taken(state, inputs, present, "held", f"{saved}; but {but}")
    return _taken(state, inputs, wanted, "faster", saved)


def _cheapest(total: Floats, costs: Floats, present: int) -> int:
    return int(np.argmin(np.where(np.arange(len(total)) == present, total, total + costs)))


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


def _taken(state: StageState, inputs: Inputs, number: int, reason: str, why: str) -> tuple[StageState, Decision]:
    choice = inputs.candidates[number].choice
    decision = Decision(inputs.step, inputs.stage, choice, state.current, reason, why, inputs, state)
    if choice == state.current:
        return state, decision
    backs = (*state.backs, inputs.step) if choice in recent(state, inputs) else state.backs
    gone = left(state, inputs, number, reason == "faster")
    since = None if state.current is None else inputs.step
    return replace(state, current=choice, since=since, left=gone, backs=backs), decision
