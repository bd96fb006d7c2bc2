"""How close the Parallelism Selector comes to perfect foresight, on simulated runs.

simulated_runs.py ─▶ selector, paper's rule, best static choice, clairvoyant (selection_strategies.py) ─▶ losses
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from earl.benchmarks.forecast import Random
from earl.benchmarks.simulated_runs import LIMIT, STEPS, Floats, SimulatedRun, world
from earl.parallel.layout import Choice, Layout, bucket_of
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
    decisions: tuple[Decision, ...] = ()


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
    return replace(course, unforced_backs=most_within(free), decisions=tuple(decisions))


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
    measured = {bucket: _times_of(world, 2.0**bucket, random) for bucket in range(5, 16)}
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
        for choice, seconds in _times_of(world, tokens, random).items():
            selector.measured(choice, load, seconds)


def _times_of(world: SimulatedRun, tokens: float, random: Random) -> dict[Choice, float]:
    noise = np.exp(0.03 * random.standard_normal(len(world.choices)))
    return {
        choice: world.true(number, tokens) * float(noise[number])
        for number, choice in enumerate(world.choices)
        if tokens <= world.rooms[number]
    }


# An adversarial load: short contexts while the choice is fast for long ones, and the reverse.


def adversary(number: int, seed: int) -> dict[str, Any]:
    """One run: its loss against the best static choice in hindsight, and its switches."""
    own = replace(world(number, seed), rooms=np.full(8, LIMIT))  # so that memory forces no switch
    selector = Selector({own.stage: own.choices}, own, {own.stage: own.taken_for}, steps=STEPS)
    short, long = _ends(own)
    rested = int(np.random.default_rng(own.seed + 3).integers(1, 40))  # steps after a switch until the load follows
    chosen: list[Choice] = []
    loads: list[Load] = []
    selector.saw(-1, _load(short))

    def choose(step: int) -> Choice:
        chosen.append(selector.decide(own.stage, step).choice)
        settled = len(chosen) > rested and len(set(chosen[-rested - 1 :])) == 1
        last = loads[-1] if loads else _load(short)
        loads.append(_load(_worse(own, chosen[-1], short, long)) if settled else last)
        return chosen[-1]

    def told(step: int, choice: Choice, seconds: float | None, switch: float) -> None:
        assert seconds is not None, "every choice fits"
        if switch:
            selector.switched(choice, switch)
        selector.measured(choice, loads[step], seconds)
        selector.saw(step, loads[step])

    course = played(own, choose, told, loads)
    return {
        "loss": course.seconds / static(replace(own, loads=tuple(loads))) - 1,
        "switches": course.switches,
        "backs": course.backs,
        "unforced_backs": course.unforced_backs,
        "out_of_memory": 0,
    }


def _load(tokens: float) -> Load:
    return Load(64, tokens, int(2 * tokens), LIMIT)


def _ends(own: SimulatedRun) -> tuple[float, float]:
    """Contexts at which different choices are the fastest, beyond the range of the run's means."""
    means = [load.mean_tokens for load in own.loads]
    return min(means) / 2, min(2 * max(means), LIMIT / 2)


def _worse(own: SimulatedRun, choice: Any, short: float, long: float) -> float:
    """The context, short or long, at which the choice loses more."""
    number = own.choices.index(choice)

    def loss(tokens: float) -> float:
        return own.true(number, tokens) / min(own.true(n, tokens) for n in range(len(own.choices)))

    return max((short, long), key=loss)


CANDIDATES = 64
EVERY = 17
"""Every 17th run is also played without a profile; 17 and the 16 shapes have no common factor."""


def run(histories: int = 1000, seed: int = 0, processes: int = 1) -> dict[str, Any]:
    """Simulate `histories` runs, and a tenth as many with an adversary. For the result see `earl bench selector
    --help`.
    """
    rows = _mapped(partial(_measured, seed=seed), range(histories), processes)
    against = _mapped(partial(adversary, seed=seed), range(max(1, histories // 10)), processes)
    names = sorted({row["family"] for row in rows})
    return {
        "histories": histories,
        "seed": seed,
        "loss": {way: _spread([row[way] for row in rows]) for way in ("selector", "unprofiled", "by_range", "static")},
        "selector": _counts(rows),
        "families": {name: _spread([row["selector"] for row in rows if row["family"] == name]) for name in names},
        "adversary": {**_spread([row["loss"] for row in against]), **_counts(against)},
        "decide_ms": decide_ms(world(0, seed)),
    }


def decide_ms(example: SimulatedRun) -> float:
    """Median CPU milliseconds of a decision among 64 candidates, after 100 steps."""
    few = example.choices
    many = [replace(few[n % len(few)], layout=Layout(dp=n + 1)) for n in range(CANDIDATES)]
    selector = Selector({example.stage: many}, _Alike(example, many), {example.stage: 1.0})
    for step, load in enumerate(example.loads[:100]):
        selector.saw(step, load)
        selector.measured(many[step % CANDIDATES], load, 1.0)
    took = []
    for step in range(100, 150):
        selector.measured(many[step % CANDIDATES], example.loads[step], 1.0)
        began = time.process_time()
        selector.saw(step, example.loads[step])
        selector.decide(example.stage, step)
        took.append(1000 * (time.process_time() - began))
    return float(np.median(took))


class _Alike:
    """A predictor for many choices that repeats those of a few."""

    def __init__(self, example: SimulatedRun, many: Sequence[Choice]) -> None:
        self._example = example
        self._of = {choice: example.choices[n % len(example.choices)] for n, choice in enumerate(many)}

    def seconds(self, choice: Choice, tokens: float, sequences: int) -> float:
        return self._example.seconds(self._of[choice], tokens, sequences)

    def obstacle(self, choice: Choice, load: Any) -> str:
        return self._example.obstacle(self._of[choice], load)


def _measured(number: int, seed: int) -> dict[str, Any]:
    own = world(number, seed)
    best, course = clairvoyant(own), selected(own)
    return {
        "family": own.family,
        "selector": course.seconds / best - 1,
        "unprofiled": selected(own, profiled=False).seconds / best - 1 if number % EVERY == 0 else np.inf,
        "by_range": by_range(own).seconds / best - 1,
        "static": static(own) / best - 1,
        "switches": course.switches,
        "backs": course.backs,
        "unforced_backs": course.unforced_backs,
        "out_of_memory": course.out_of_memory,
    }


def _mapped(work: Any, numbers: range, processes: int) -> list[dict[str, Any]]:
    if processes == 1:
        return [work(number) for number in numbers]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(work, numbers, chunksize=5))


def _spread(losses: Sequence[float]) -> dict[str, float]:
    """Statistics of finite losses: a static choice may not exist."""
    values = np.array([loss for loss in losses if np.isfinite(loss)])
    return {
        "mean": float(values.mean()),
        "p95": float(np.quantile(values, 0.95)),
        "worst": float(values.max()),
        "within_3_percent": float((values <= 0.03).mean()),
    }


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {
        "switches": float(np.mean([row["switches"] for row in rows])),
        "backs_in_100": max(row["backs"] for row in rows),
        "unforced_backs_in_100": max(row["unforced_backs"] for row in rows),
        "out_of_memory": sum(row["out_of_memory"] for row in rows),
    }
