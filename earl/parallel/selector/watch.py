"""How the load goes, as far as choices tell: which is the fastest, and how often one became it again."""

from dataclasses import replace

from earl.parallel.selector.inputs import Inputs
from earl.parallel.selector.settings import Settings
from earl.parallel.selector.state import StageState

CLEARLY = 0.02
"""A choice is clearly the fastest when it takes so much less than the one that was."""


def watched(state: StageState, inputs: Inputs) -> StageState:
    """Count the decision, forget what lies too far back, and note whether the fastest choice is another now."""
    since = inputs.step - inputs.settings.back_steps
    state = replace(
        state,
        steps=state.steps + 1,
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


def dwell_steps(state: StageState, settings: Settings) -> float:
    """How many steps an advantage is expected to last: the more often it came back, the fewer.

    Example:
        100 before anything is known; 200 steps later with 4 reversals (200 + 100) / (4 + 1) = 60
    """
    return (state.steps + settings.dwell_steps) / (state.reversals + 1)
