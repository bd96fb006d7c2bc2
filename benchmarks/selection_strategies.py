"""Strategies that choose layouts in a simulated run, and their total cost: the selector and its baselines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from earl.benchmarks.growth import Random
from earl.benchmarks.simulated_runs import Floats, SimulatedRun
from earl.parallel.layout import Choice, bucket_of
from earl.parallel.memory import Load
from earl.parallel.selector.inputs import Decision, Settings
from earl.parallel.selector.selector import Selector

BACK_STEPS = 100
PROFILED = tuple(2**power for power in range(5, 15))
"""Contexts at which every layout is measured when a job starts."""


@dataclass(frozen=True, slots=True)
class Course:
    seconds: float
    switches: int
    backs: int
    """The most switches back to a choice left within 100 steps before, in any 100 steps."""
    unforced_backs: int
    """Of `backs`, those not forced by memory, if the strategy tells."""
    out_of_memory: int


def table(world: SimulatedRun) -> Floats:
    """Seconds of each choice at each step, inf if it does not fit into memory. [T, C]"""
    tokens = np.array([load.mean_tokens for load in world.loads])[:, None]
    longest = np.array([load.longest_tokens for load in world.loads])[:, None]
    seconds = (world.slopes * tokens + world.squares * tokens**2) * world.noise[:, None]
    return np.where(longest <= world.rooms, seconds, np.inf)


def clairvoyant(world: SimulatedRun) -> float:
    """Seconds of the best sequence of choices with full knowledge of the future: dynamic programming."""
    times = table(world)
    total = times[-1]
    for row in times[-2::-1]:
        total = row + np.minimum(total, total.min() + world.switch_seconds)
    return float(total.min())


def static(world: SimulatedRun) -> float:
    return float(table(world).sum(0).min())


def selected(world: SimulatedRun, settings: Settings | None = None, profiled: bool = True) -> Course:
    """The selector's result. Before a rollout it knows the last step's contexts, before an update this step's."""
    selector = Selector({world.stage: world.choices}, world, {world.stage: world.taken_for}, settings, len(world.loads))
    if profiled:
        _profile(selector, world)
    decisions: list[Decision] = []

    def choose(step: int) -> Choice:
        selector.saw(step, world.loads[step] if world.stage == "update" else world.loads[max(step - 1, 0)])
        decisions.append(selector.decide(world.stage, step))
        return decisions[-1].choice

    def told(step: int, choice: Choice, seconds: float | None, switch: float) -> None:
        if switch:
            selector.switched(choice, switch)
        if seconds is None:
            selector.out_of_memory(choice, world.loads[step], step)
        else:
            selector.measured(choice, world.loads[step], seconds)

    course = played(world, choose, told)
    free = [one.step for one in decisions if one.reason == "faster" and _back(one, decisions)]
    return replace(course, unforced_backs=most_within(free))


def _back(decision: Decision, decisions: list[Decision]) -> bool:
    return any(
        one.switched and one.before == decision.choice and 0 < decision.step - one.step < BACK_STEPS
        for one in decisions
    )


def by_range(world: SimulatedRun) -> Course:
    """The rule of the EARL paper: the best measured choice of each context range, taken when the average enters it.

    A choice that ran out of memory is not taken again in that range or above, so that the run can go on.
    """
    random: Random = np.random.default_rng(world.seed + 1)
    measured = {bucket: _measured(world, 2.0**bucket, random) for bucket in range(5, 16)}
    barred: dict[Choice, int] = {}

    def choose(step: int) -> Choice:
        load = world.loads[step] if world.stage == "update" else world.loads[max(step - 1, 0)]
        bucket = bucket_of(load.mean_tokens, load.sequences).context
        fits = {choice: own for choice, own in measured[bucket].items() if bucket < barred.get(choice, bucket + 1)}
        return min(fits, key=lambda choice: fits[choice])

    def told(step: int, choice: Choice, seconds: float | None, _: float) -> None:
        if seconds is None:
            load = world.loads[step]
            barred[choice] = bucket_of(load.mean_tokens, load.sequences).context
            if world.stage == "rollout":  # it chose by the last step's average
                last = world.loads[max(step - 1, 0)]
                barred[choice] = min(barred[choice], bucket_of(last.mean_tokens, last.sequences).context)

    return played(world, choose, told)


def played(
    world: SimulatedRun,
    choose: Callable[[int], Choice],
    told: Callable[[int, Choice, float | None, float], None],
    loads: Sequence[Load] | None = None,
) -> Course:
    """Simulate a run under a strategy. A step that runs out of memory is lost, and repeated.

    `choose` returns the choice of a step. `told` gets the step, the choice, its seconds (None: out of memory), and the
    seconds of a switch to it. `loads` replaces the run's; `choose` may add the one of its step.
    """
    random: Random = np.random.default_rng(world.seed + 2)
    loads = world.loads if loads is None else loads
    total, failures, current = 0.0, 0, None
    left: list[tuple[int, Choice]] = []
    backs: list[int] = []
    for step, noise in enumerate(world.noise.tolist()):
        done = False
        while not done:
            choice, switch = choose(step), 0.0
            if current not in (None, choice):
                switch = world.switch_seconds * float(np.exp(0.1 * random.standard_normal()))
                backs += [step] if any(own == choice and step - when < BACK_STEPS for when, own in left) else []
                left.append((step, current))
            current, number = choice, world.choices.index(choice)
            done = bool(loads[step].longest_tokens <= world.rooms[number])
            seconds = world.true(number, loads[step].mean_tokens) * (noise if done else 1.0)
            failures += not done
            total += switch + seconds
            told(step, choice, seconds if done else None, switch)
    return Course(total, len(left), most_within(backs), most_within(backs), failures)


def most_within(steps: list[int]) -> int:
    """The most of these steps in any 100 steps."""
    return max((sum(first <= step < first + BACK_STEPS for step in steps) for first in steps), default=0)


def _profile(selector: Selector, world: SimulatedRun) -> None:
    random: Random = np.random.default_rng(world.seed + 1)
    sequences = world.loads[0].sequences
    for tokens in PROFILED:
        load = Load(sequences, float(tokens), tokens, tokens)
        for choice, seconds in _measured(world, tokens, random).items():
            selector.measured(choice, load, seconds)


def _measured(world: SimulatedRun, tokens: float, random: Random) -> dict[Choice, float]:
    noise = np.exp(0.03 * random.standard_normal(len(world.choices)))
    return {
        choice: world.true(number, tokens) * float(noise[number])
        for number, choice in enumerate(world.choices)
        if tokens <= world.rooms[number]
    }
