"""What was left, and what speaks against going back to it: a load that turns again finds the run where it cannot leave.

Of `back_steps` steps at most one switches back freely. Who goes back has used it up: where the load turns once more,
the choice loses again what it lost when it was left, until the next may be taken. So that is weighed beside the switch.
"""

import numpy as np

from earl.parallel.choice import Choice
from earl.parallel.selector.inputs import AHEAD, Inputs
from earl.parallel.selector.outlook import Floats
from earl.parallel.selector.state import Left, StageState

LASTING = 16
"""Steps for which a choice has to fit to be gone back to."""

FALLEN = 0.9
"""What memory forced out is gone back to once the longest contexts of those steps are so much of what did not fit."""


def recent(state: StageState, inputs: Inputs) -> set[Choice]:
    """What was left lately: to take it again is a switch back."""
    return {one.choice for one in state.left if one.step > inputs.step - inputs.settings.back_steps}


def risks(state: StageState, inputs: Inputs, dwell_steps: float) -> Floats:
    """Seconds that a switch to each is expected to lose while it cannot be left, should the load turn. [C]

    Example:
        After a switch back no other is free for 100 steps. Where an advantage lasts 100 on average, the load has turned
        for 100 - 100 * (1 - 0.99 ** 100) = 36.6 of them: what lost 0.5 s a step has to save 18 s more.
    """
    settings, kept, known = inputs.settings, 1 - 1 / max(dwell_steps, 2.0), recent(state, inputs)
    spent = settings.back_steps - (inputs.step - state.backs[-1]) if state.backs else 0
    lost = {}
    for one in state.left:
        held = settings.back_steps if one.choice in known else max(spent, settings.rest_steps)
        held = held if inputs.remaining is None else min(held, inputs.remaining)
        lost[one.choice] = one.lost_seconds * (held - (1 - kept**held) / (1 - kept))
    return np.array([lost.get(one.choice, 0.0) for one in inputs.candidates])


def hindrance(state: StageState, inputs: Inputs, wanted: int, saved_seconds: float, cost_seconds: float) -> str:
    """Why a choice may not be taken freely, though it pays; empty when it may.

    Soon after a switch another one waits, unless the wait would lose more than it costs. What was left lately is gone
    back to once, and only if it fits for LASTING steps: else it would soon have to be left again.

    Args:
        saved_seconds: of a step, now.
        cost_seconds: what the switch is weighed with.
    """
    one, settings = inputs.candidates[wanted], inputs.settings
    wait = 0 if state.since is None else state.since + settings.rest_steps - inputs.step
    if wait > 0 and wait * saved_seconds < cost_seconds:
        return f"the last switch was at step {state.since}"
    if one.choice not in recent(state, inputs):
        return ""
    if state.backs:
        return f"it was left lately, and step {state.backs[-1]} switched back already"
    lasting = min(sum(steps <= LASTING for steps in AHEAD), max(own.fits for own in inputs.candidates))
    if one.fits < lasting:
        return "it was left lately, and may not fit for long"
    unfit = next(own.unfit_tokens for own in state.left if own.choice == one.choice)
    if unfit is not None and inputs.longest_tokens[lasting - 1] > FALLEN * unfit:
        return f"it was left lately, as contexts of {unfit} tokens were expected, and they have hardly fallen"
    return ""


def left(state: StageState, inputs: Inputs, taken: int, freely: bool) -> tuple[Left, ...]:
    """What was left once the present choice is: each once, with what it lost when it was left last."""
    own = next((one for one in inputs.candidates if one.choice == state.current), None)
    if state.current is None:
        return state.left
    lost = own.seconds[0] - inputs.candidates[taken].seconds[0] if own and freely else 0.0
    unfit = inputs.longest_tokens[own.fits] if own and not freely and own.fits < len(AHEAD) else None
    before = tuple(one for one in state.left if one.choice != state.current)
    return (*before, Left(state.current, inputs.step, max(0.0, lost), unfit))
