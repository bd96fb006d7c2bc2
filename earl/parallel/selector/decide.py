"""The decision of one stage at one step: a pure function of state and inputs.

    a choice that does not fit, soon will not, or is barred   is excluded
    the present choice is excluded                            -> the cheapest of the others, now: forced
    otherwise                                                 -> the cheapest, if it saves more than the switch costs;
                                                                 what it tells for the rest of the run is saved, too

"Cheapest" counts the time until the advantage is expected to end, later switches included (`totals`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from earl.errors import EarlError
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
class PastLayout:
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
    left: tuple[PastLayout, ...] = ()  # choices that were left, each once, the latest last
    backs: tuple[int, ...] = ()  # steps of switches back
    steps: int = 0  # decisions so far
    fastest: tuple[Choice, ...] = ()
    """The choices that were clearly the fastest, in order, each once; the last is so now."""
    reversals: int = 0  # how often an earlier fastest choice became it again
    on_trial: bool = False  # whether the current choice was taken for what it tells, and that is not known yet


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
    telling: tuple[float, ...] = ()
    """Standard deviation by which a measurement now would move the logarithms of the seconds; empty: by nothing."""


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
    reason: str
    """`first`: the first choice; `stays`: no other is faster by enough; `faster`: saves more than the switch costs;
    `trial`: may be faster, and a step of it costs less than what it tells is worth, or back from such a step; `forced`:
    the present one does not fit, or soon will not; `held`: another would be faster, but it was left too recently."""
    why: str  # the reason with its numbers
    inputs: Inputs
    state: StageState  # before the decision

    @property
    def switched(self) -> bool:
        return self.before is not None and self.choice != self.before


Floats = NDArray[np.float64]


def weights(dwell_steps: float, remaining: int | None) -> Floats:
    """Steps that each look-ahead stands for, when an advantage ends at each step with probability 1 / dwell. [P]
    Without an end: 1, 1, 2, 4, 8, 16, 32 and 64 steps; each step counts less than the one before."""
    ends = np.array([*AHEAD[1:], 2 * AHEAD[-1]], np.float64)
    if remaining is not None:
        ends = np.minimum(ends, remaining + 1)
    kept = 1 - 1 / max(dwell_steps, 2.0)
    counted: Floats = (1 - kept**ends) / (1 - kept)
    return np.diff(counted, prepend=0.0)


_normal_cdf = np.vectorize(NormalDist().cdf, otypes=[np.float64])


def worth(inputs: Inputs, counts: Floats) -> Floats:
    """Seconds that a run may save by what one step of each candidate tells: its knowledge gradient. [C]

    What is learned of a candidate stays true until the run ends. Afterwards the faster of it and the best of the others
    is taken (Frazier, Powell and Dayanik, 2008): with X ~ N(d, s^2) for the logarithm of its seconds over those of that
    one, E[min(1, e^X)] = P(X > 0) + E[e^X; X < 0] = Phi(d / s) + e^(d + s^2 / 2) Phi(-d / s - s) of them. What is saved
    only under later loads is not counted: it can be learned then.
    """
    seconds = np.array([one.seconds for one in inputs.candidates])
    fits = np.array([[one.fits > place for place in range(len(AHEAD))] for one in inputs.candidates])
    steps = counts if inputs.remaining is None else _until(inputs.remaining)
    saved = np.zeros(len(seconds))
    for number, one in enumerate(inputs.candidates):
        others = np.where(fits, seconds, np.inf)
        others[number] = np.inf
        best = others.min(axis=0)
        both = fits[number] & np.isfinite(best)
        if not both.any() or not max(one.telling, default=0.0):
            continue
        own, spread = seconds[number, both], np.maximum(np.array(one.telling)[both], 1e-6)
        apart = np.log(own / best[both])
        better = np.exp(apart + spread**2 / 2) * _normal_cdf(-apart / spread - spread)
        share = np.minimum(1.0, np.exp(apart)) - (_normal_cdf(apart / spread) + better)
        saved[number] = (steps[both] * best[both]) @ np.minimum(share, share[0])
    return saved


def _until(remaining: int) -> Floats:
    """Steps until the end of the run that each look-ahead stands for. [P]"""
    ends = np.minimum([*AHEAD[1:], remaining + 1], remaining + 1)
    return np.diff(ends, prepend=0).astype(np.float64)


def totals(candidates: Sequence[Candidate], seconds: Floats, counts: Floats, costs: Floats) -> Floats:
    """Expected seconds over the look-aheads for each candidate [C], if taken now; inf: does not fit now.

    Dynamic programming backwards from the last look-ahead, with switches where they pay off, averaged over the
    futures, in each of which a candidate fits for a different time. `seconds` are those of a step [C, P], `costs` those
    of a switch to each [C].
    """
    fits = np.array([one.futures for one in candidates]).T  # [F, C]
    total = np.zeros(fits.shape)
    for place in reversed(range(fits.max())):
        there = fits > place
        onward = np.minimum(total, (total + costs).min(axis=1, keepdims=True))
        taken = np.where(there, seconds[:, place] * max(counts[place], 1e-9), np.inf) + onward
        total = np.where(there.any(axis=1, keepdims=True), taken, total)  # no information where nothing fits
    expected: Floats = np.where(fits > 0, total, np.inf).mean(axis=0)
    return expected


# Switching back: at most one switch back is free per `back_steps`. If the load reverses again after it, the earlier
# loss recurs until the next is allowed; this risk is weighed together with the switch.

LASTING = 16  # steps for which a choice must fit before a switch back to it

FALLEN = 0.9
"""After a memory-forced switch, going back requires the longest contexts to fall to this share of what did not fit."""


def recently_left(state: StageState, inputs: Inputs) -> set[Choice]:
    """Choices left recently: to take one again is a switch back."""
    return {one.choice for one in state.left if one.step > inputs.step - inputs.settings.back_steps}


def risks(state: StageState, inputs: Inputs, dwell_steps: float) -> Floats:
    """Expected loss of a switch to each, in seconds, while it cannot be left, if the load reverses. [C]

    If an advantage lasts 100 steps on average, and no other switch is free for 100, the load has reversed for
    100 - 100 * (1 - 0.99 ** 100) = 36.6 of them: a choice that lost 0.5 s a step has to save 18 s more.
    """
    settings, kept, known = inputs.settings, 1 - 1 / max(dwell_steps, 2.0), recently_left(state, inputs)
    spent = settings.back_steps - (inputs.step - state.backs[-1]) if state.backs else 0
    lost = {}
    for one in state.left:
        held = settings.back_steps if one.choice in known else max(spent, settings.rest_steps)
        held = held if inputs.remaining is None else min(held, inputs.remaining)
        lost[one.choice] = one.lost_seconds * (held - (1 - kept**held) / (1 - kept))
    return np.array([lost.get(one.choice, 0.0) for one in inputs.candidates])


def hindrance(state: StageState, inputs: Inputs, wanted: int, saved_seconds: float, cost_seconds: float) -> str:
    """Why a choice may not be taken now although it pays; empty when it may.

    Soon after a switch the next has to wait, unless the wait would lose more than the switch costs. A switch back is
    allowed once, and only if the choice fits for LASTING steps.
    """
    one, settings = inputs.candidates[wanted], inputs.settings
    wait = 0 if state.since is None else state.since + settings.rest_steps - inputs.step
    if wait > 0 and wait * saved_seconds < cost_seconds:
        return f"the last switch was at step {state.since}"
    if one.choice not in recently_left(state, inputs):
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


def past_layouts(state: StageState, inputs: Inputs, taken: int, freely: bool) -> tuple[PastLayout, ...]:
    """The left choices once the present one is left too: each once, with its loss at the last time."""
    own = next((one for one in inputs.candidates if one.choice == state.current), None)
    if state.current is None:
        return state.left
    lost = own.seconds[0] - inputs.candidates[taken].seconds[0] if own and freely else 0.0
    unfit = inputs.longest_tokens[own.fits] if own and not freely and own.fits < len(AHEAD) else None
    before = tuple(one for one in state.left if one.choice != state.current)
    return (*before, PastLayout(state.current, inputs.step, max(0.0, lost), unfit))


CLEARLY = 0.02
"""A choice is clearly the fastest when it is faster than the last fastest by this share."""


def note_fastest(state: StageState, inputs: Inputs) -> StageState:
    """Count the decision, drop old records, and note whether another choice is now the fastest."""
    since = inputs.step - inputs.settings.back_steps
    state = replace(state, steps=state.steps + 1, backs=tuple(step for step in state.backs if step > since))
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
    """Steps that an advantage is expected to last: fewer, the more often it reversed."""
    return (state.steps + settings.dwell_steps) / (state.reversals + 1)


def decide(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    """The stage's choice at this step, and the next state. Raises EarlError when no candidate fits."""
    after, decision = _decide(note_fastest(state, inputs), inputs)
    return after, replace(decision, state=state)


def _decide(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    if not any(one.fits for one in inputs.candidates):
        return _last_resort(state, inputs)
    allowed = _allowed(inputs)
    dwell = dwell_steps(state, inputs.settings)
    counts = weights(dwell, inputs.remaining)
    seconds = np.array([one.seconds for one in inputs.candidates])
    plain = np.array([one.cost_seconds for one in inputs.candidates])
    costs = (1 + inputs.settings.margin) * plain
    known = np.where(allowed, totals(inputs.candidates, seconds, counts, costs), np.inf)
    present = next((n for n, one in enumerate(inputs.candidates) if one.choice == state.current), None)
    if present is None or not allowed[present]:
        best = int(np.argmin(known + costs))
        reason = "first" if state.current is None else "forced"
        return _take(state, inputs, best, reason, _why_forced(state, inputs))
    if inputs.candidates[present].origin == "measured":  # one after the other
        total = np.where(allowed, totals(inputs.candidates, seconds, counts, plain), np.inf) - worth(inputs, counts)
        wanted = _cheapest(total, plain, present)
        if state.on_trial or (wanted != present and inputs.candidates[wanted].telling):
            return _weigh_trial(state, inputs, total, plain, present, wanted)
    risked = costs + risks(state, inputs, dwell)
    with_risks = np.where(allowed, totals(inputs.candidates, seconds, counts, risked), np.inf)
    return _weigh(state, inputs, known, costs, present, _cheapest(with_risks, risked, present))


def _weigh_trial(
    state: StageState, inputs: Inputs, total: Floats, costs: Floats, present: int, wanted: int
) -> tuple[StageState, Decision]:
    """A switch to a choice of which too little is known, or away from such a one. Hysteresis guards against loads that
    turn, not against errors of predictions, so neither counts as a switch back nor has to wait."""
    if wanted == present:
        return _take(state, inputs, present, "stays", "it is on trial, and no other choice is worth the switch to it")
    one = inputs.candidates[wanted]
    tells = "what a step of it tells is weighed, too" if one.telling else "what was tried is no better"
    saves = f"{one.choice} ({one.origin}) is expected to save {total[present] - total[wanted]:.3g} s in all"
    why = f"{saves}; the switch is weighed with {costs[wanted]:.3g} s; {tells}"
    return _take(state, inputs, wanted, "trial", why)


def _weigh(
    state: StageState, inputs: Inputs, total: Floats, costs: Floats, present: int, safe: int
) -> tuple[StageState, Decision]:
    """The choice if the present one may stay; `safe` is the cheapest with the cost of its risks.
    If the cheapest cannot be taken, the second best is not taken instead."""
    wanted = _cheapest(total, costs, present)
    if wanted == present:
        return _take(state, inputs, present, "stays", "no other choice saves more than the switch to it costs")
    better = inputs.candidates[wanted]
    now = inputs.candidates[present].seconds[0] - better.seconds[0]
    reason = "faster" if now > 0 else "trial"
    saved = (
        f"{better.choice} ({better.origin}) saves {now:.3g} s a step now and {total[present] - total[wanted]:.3g} s as "
        f"long as that is expected to last; the switch is weighed with {costs[wanted]:.3g} s"
    )
    but = hindrance(state, inputs, wanted, now, float(costs[wanted]))
    if not but and safe != wanted:
        but = "the load may turn again before it could be left"
    if but:
        return _take(state, inputs, present, "held", f"{saved}; but {but}")
    return _take(state, inputs, wanted, reason, saved)


def _cheapest(total: Floats, costs: Floats, present: int) -> int:
    return int(np.argmin(np.where(np.arange(len(total)) == present, total, total + costs)))


def _why_forced(state: StageState, inputs: Inputs) -> str:
    """Why the present choice has to be left."""
    present = next((one for one in inputs.candidates if one.choice == state.current), None)
    if state.current is None:
        return "the cheapest of what fits"
    if present is None:
        return f"{state.current} is not among the candidates any more"
    ahead, tokens = AHEAD[present.fits], inputs.longest_tokens[present.fits]
    when = f"in {ahead} steps" if ahead else "now"
    return f"{present.choice} does not fit contexts of {tokens} tokens, expected {when}: {present.why_not}"


def _allowed(inputs: Inputs) -> NDArray[np.bool_]:
    """What fits until a switch can complete; if nothing does, what fits longest. [C]"""
    most, left = inputs.settings.guard_steps, inputs.remaining
    guard = sum(steps <= (most if left is None else min(most, left)) for steps in AHEAD)
    fits = np.array([one.fits for one in inputs.candidates])
    return fits >= min(guard, int(fits.max()))


def _last_resort(state: StageState, inputs: Inputs) -> tuple[StageState, Decision]:
    """If nothing fits what may come: the present choice if the last contexts fit, else the fastest that fits them."""
    left = [number for number, one in enumerate(inputs.candidates) if one.fits_seen]
    reasons = "; ".join(f"{one.choice}: {one.why_not}" for one in inputs.candidates)
    nothing = f"nothing fits contexts of {inputs.longest_tokens[0]} tokens ({reasons})"
    if not left:
        cure = "lower context.limit, or give the run more or larger devices"
        raise EarlError(f"{inputs.stage} at step {inputs.step}: {nothing}; {cure}")
    best = min(left, key=lambda n: (inputs.candidates[n].choice != state.current, inputs.candidates[n].seconds[0]))
    reason = "first" if state.current is None else "forced"
    return _take(state, inputs, best, reason, f"{nothing}, but what was seen last does")


def _take(state: StageState, inputs: Inputs, number: int, reason: str, why: str) -> tuple[StageState, Decision]:
    one = inputs.candidates[number]
    choice, tried = one.choice, bool(one.telling)
    decision = Decision(inputs.step, inputs.stage, choice, state.current, reason, why, inputs, state)
    if choice == state.current:
        return replace(state, on_trial=state.on_trial and (tried or one.origin == "predicted")), decision
    if reason == "trial":
        return replace(state, current=choice, on_trial=tried), decision
    backs = (*state.backs, inputs.step) if choice in recently_left(state, inputs) else state.backs
    gone = past_layouts(state, inputs, number, reason == "faster")
    since = None if state.current is None else inputs.step
    return replace(state, current=choice, since=since, left=gone, backs=backs, on_trial=False), decision
