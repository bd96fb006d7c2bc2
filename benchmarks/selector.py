"""How close the Parallelism Selector comes to perfect foresight, on simulated runs.

A shape of growth ─▶ lengths of each step's episodes ─▶ mean and longest ─▶ a run of 8 layouts with limited memory
run ─▶ selector, paper's rule, best static choice, clairvoyant ─▶ losses

A layout's time has a share that grows with tensor parallelism, and one quadratic in the context that falls with it
(KV-cache room). So layouts cross at randomly drawn contexts.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.benchmarks.repeats import grouped
from earl.parallel.layout import Choice, Layout, Stage, bucket_of
from earl.parallel.memory import Load
from earl.parallel.selector.decide import Decision
from earl.parallel.selector.selector import Selector
from earl.seeds import derive

STEPS, DEVICES, LIMIT = 300, 8, 32_768
"""Of a run: steps, devices, and tokens of the longest context."""
SPLITS = (1, 2, 4, 8)
ERRORS = (0.06, 0.15, 0.30)
"""Of predictions, relative."""
Floats = NDArray[np.float64]
Random = np.random.Generator
Shape = Callable[[Floats, Random], Floats]


def _rate(random: Random) -> float:
    return float(np.exp(random.uniform(np.log(0.002), np.log(0.04))))


def _logistic(t: Floats, random: Random) -> Floats:
    gain, middle, width = random.uniform(0.3, 4), random.uniform(10, 120), random.uniform(5, 30)
    return np.asarray(1 + gain / (1 + np.exp(-(t - middle) / width)))


def _jumps(t: Floats, random: Random) -> Floats:
    times = random.integers(0, len(t), random.poisson(len(t) / random.uniform(30, 80)))
    heights = random.exponential(0.25, len(times))
    return np.asarray(1 + (heights[:, None] * (t >= times[:, None])).sum(0))


def _walk(t: Floats, random: Random) -> Floats:
    steps = random.normal(min(_rate(random), 0.015), random.uniform(0.005, 0.04), len(t))
    return np.asarray(np.exp(np.cumsum(steps)))


def _dip(t: Floats, random: Random) -> Floats:
    turn = random.integers(15, 60)
    down: Floats = 1 - 0.3 * np.sin(np.minimum(t, turn) / turn * np.pi / 2)
    return down + _rate(random) * np.maximum(t - turn, 0)


def _stairs(t: Floats, random: Random) -> Floats:
    slopes = random.choice([0, 0, 1, 2], len(t)) * _rate(random) / 1.5
    return 1 + np.cumsum(np.repeat(slopes, random.integers(10, 60, len(t)))[: len(t)])


def _wave(t: Floats, random: Random) -> Floats:
    swing: Floats = random.uniform(0.03, 0.12) * np.sin(2 * np.pi * t / random.uniform(15, 60))
    return 1 + _rate(random) * t / 2 + swing


def _drop(t: Floats, random: Random) -> Floats:
    """Growth, with a drop to short contexts at some step."""
    fall = random.integers(60, 240)
    return np.where(t < fall, np.exp(0.01 * t), random.uniform(0.3, 0.8) * np.exp(0.01 * (t - fall)))


def _sawtooth(t: Floats, random: Random) -> Floats:
    """Growth that restarts periodically, as under a curriculum."""
    period = random.uniform(40, 150)
    return np.asarray(1 + random.uniform(0.5, 3) * (t % period) / period)


SHAPES: dict[str, Shape] = {
    "linear": lambda t, random: 1 + _rate(random) * t,
    "exponential": lambda t, random: np.exp(min(_rate(random), 0.03) * t),
    "logistic": _logistic,
    "saturating": lambda t, random: 1 + random.uniform(0.3, 3) * (1 - np.exp(-t / random.uniform(10, 80))),
    "flat then growth": lambda t, random: 1 + _rate(random) * np.maximum(t - random.integers(10, 80), 0),
    "growth then flat": lambda t, random: 1 + _rate(random) * np.minimum(t, random.integers(15, 100)),
    "random walk": _walk,
    "jumps": _jumps,
    "flat": lambda t, _: np.ones(len(t)),
    "power": lambda t, random: 1 + 4 * _rate(random) * t ** random.uniform(0.4, 0.8),
    "quadratic": lambda t, random: 1 + (_rate(random) * t / 2) ** 2 + 0.2 * _rate(random) * t,
    "dip then growth": _dip,
    "stairs": _stairs,
    "wave": _wave,
    "drop": _drop,
    "sawtooth": _sawtooth,
}
"""Of mean contexts over steps, relative to those of the first."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run with C choices and T steps."""

    family: str
    choices: tuple[Choice, ...]
    loads: tuple[Load, ...]  # [T]
    noise: Floats  # [T]: factor on the time of a step under any choice
    slopes: Floats  # [C]: seconds per token
    squares: Floats  # [C]: seconds per squared token
    rooms: Floats  # [C]: longest context that fits
    error: Floats  # [2, C]: logarithm of predicted over true, and its change per doubling of the context
    switch_seconds: float
    taken_for: float
    """The assumed cost of a switch before one is measured."""
    seed: int

    @property
    def stage(self) -> Stage:
        return self.choices[0].stage

    def known(self, step: int) -> Load:
        """The load that the choice of a step can go by."""
        return self.loads[step if self.stage == "update" else max(step - 1, 0)]

    def true(self, number: int, tokens: float) -> float:
        return float(self.slopes[number] * tokens + self.squares[number] * tokens**2)

    def seconds(self, choice: Choice, load: Load) -> float:
        number, tokens = self.choices.index(choice), load.mean_tokens
        doublings = np.log2(tokens / self.loads[0].mean_tokens)
        error = self.error[0, number] + self.error[1, number] * doublings
        return self.true(number, tokens) * float(np.exp(error))

    def obstacle(self, choice: Choice, load: Load) -> str:
        room = self.rooms[self.choices.index(choice)]
        return "" if load.longest_tokens <= room else f"{load.longest_tokens} tokens of {room:.0f}"


def simulated_run(number: int, seed: int, error: float = ERRORS[0]) -> SimulatedRun:
    """`error`: standard deviation of the logarithm of predicted over true seconds, of each layout; a third of that per
    doubling of the context."""
    names = list(SHAPES)
    family = names[number % len(names)]
    own = derive("selector", seed, number)
    random: Random = np.random.default_rng(own)
    curve = random.choice([500, 1000, 2000]) * SHAPES[family](np.arange(STEPS, dtype=np.float64), random)
    loads = lengths(np.clip(curve, 50, LIMIT / 2), random)
    return timed(family, loads, random, own, error)


def lengths(curve: Floats, random: Random) -> tuple[Load, ...]:
    """The loads of sampled episodes around a curve of mean contexts."""
    spread, count = random.choice([0.05, 0.15, 0.3]), int(random.choice([64, 128, 256]))
    sizes = np.minimum(curve[:, None] * np.exp(spread * random.standard_normal((len(curve), count))), LIMIT)
    return tuple(Load(count, float(own.mean()), int(own.max()), LIMIT) for own in sizes)


def timed(family: str, loads: tuple[Load, ...], random: Random, seed: int, error: float) -> SimulatedRun:
    stage: Stage = "rollout" if random.random() < 0.5 else "update"
    choices = tuple(
        Choice(stage, Layout(dp=DEVICES // tp, tp=tp), None, again) for again in (False, True) for tp in SPLITS
    )
    means, longest = (np.array([getattr(load, name) for load in loads]) for name in ("mean_tokens", "longest_tokens"))
    shares = np.cumsum(random.uniform(0.05, 0.4, len(SPLITS)))
    crossings = np.sort(np.exp(random.uniform(np.log(means.min()), np.log(means.max()), len(SPLITS) - 1)))
    between = np.diff(shares) / crossings
    squares = np.append(np.cumsum(between[::-1])[::-1], 0.0) + random.uniform(0, 0.2) / means.max()
    rooms = np.sort(np.exp(random.uniform(np.log(1.2 * longest[:5].max()), np.log(2 * LIMIT), len(SPLITS))))
    rooms[-1] = LIMIT
    scale = 10.0 / means[0]  # about ten seconds at first
    again = random.uniform(1.1, 1.35)  # recomputed activations: slower, and much less memory
    step = float(scale * means.mean())
    switch = step * float(np.exp(random.uniform(np.log(0.1), np.log(5))))
    return SimulatedRun(
        family,
        choices,
        loads,
        noise=np.exp(random.choice([0.01, 0.03, 0.08]) * random.standard_normal(len(loads))),
        slopes=scale * np.concatenate([1 + shares, again * (1 + shares)]),
        squares=scale * np.concatenate([squares, again * squares]),
        rooms=np.minimum(np.concatenate([rooms, 2.5 * rooms]), LIMIT),
        error=error * random.normal(0, [[1.0], [1 / 3]], (2, len(choices))),
        switch_seconds=switch,
        taken_for=switch * float(np.exp(random.uniform(-0.7, 0.7))),
        seed=seed,
    )


BACK_STEPS = 100
PROFILED = tuple(2**power for power in range(5, 15))
"""Contexts at which every layout is measured when a job starts."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    seconds: float
    switches: int
    backs: int
    """The most switches back to a choice left within 100 steps before, in any 100 steps."""
    unforced_backs: int
    """Of `backs`, those not forced by memory, if the strategy tells."""
    out_of_memory: int


def table(simulated: SimulatedRun) -> Floats:
    """Seconds of each choice at each step, inf if it does not fit into memory. [T, C]"""
    tokens = np.array([load.mean_tokens for load in simulated.loads])[:, None]
    longest = np.array([load.longest_tokens for load in simulated.loads])[:, None]
    seconds = (simulated.slopes * tokens + simulated.squares * tokens**2) * simulated.noise[:, None]
    return np.where(longest <= simulated.rooms, seconds, np.inf)


def clairvoyant(simulated: SimulatedRun) -> float:
    """Seconds of the best sequence of choices with full knowledge of the future: dynamic programming."""
    times = table(simulated)
    total = times[-1]
    for row in times[-2::-1]:
        total = row + np.minimum(total, total.min() + simulated.switch_seconds)
    return float(total.min())


def static(simulated: SimulatedRun) -> float:
    return float(table(simulated).sum(0).min())


def selected(simulated: SimulatedRun, profiled: bool = True) -> StrategyResult:
    """The selector's result. Before a rollout it knows the last step's contexts, before an update this step's."""
    selector = Selector(
        {simulated.stage: simulated.choices},
        simulated,
        {simulated.stage: simulated.taken_for},
        steps=len(simulated.loads),
    )
    if profiled:
        _profile(selector, simulated)
    decisions: list[Decision] = []

    def choose(step: int) -> Choice:
        selector.record_load(step, simulated.known(step))
        decisions.append(selector.decide(simulated.stage, step))
        return decisions[-1].choice

    def record(step: int, choice: Choice, seconds: float | None, switch: float) -> None:
        if switch:
            selector.switched(choice, switch)
        if seconds is None:
            selector.out_of_memory(choice, simulated.loads[step], step)
        else:
            selector.measured(choice, simulated.loads[step], seconds)

    course = played(simulated, choose, record)
    return replace(course, unforced_backs=_free_backs(decisions))


def _free_backs(decisions: list[Decision]) -> int:
    """The most free switches back in any 100 steps; what was left for a trial was not left."""
    return most_within([one.step for one in decisions if one.reason == "faster" and _back(one, decisions)])


def _back(decision: Decision, decisions: list[Decision]) -> bool:
    return any(
        one.switched
        and one.reason != "trial"
        and one.before == decision.choice
        and 0 < decision.step - one.step < BACK_STEPS
        for one in decisions
    )


def by_range(simulated: SimulatedRun) -> StrategyResult:
    """The rule of the EARL paper: the best measured choice of each context range, taken when the average enters it.

    A choice that ran out of memory is not taken again in that range or above, so that the run can go on.
    """
    random: Random = np.random.default_rng(simulated.seed + 1)
    measured = {bucket: _measured(simulated, 2.0**bucket, random) for bucket in range(5, 16)}
    barred: dict[Choice, int] = {}

    def choose(step: int) -> Choice:
        bucket = _range(simulated.known(step))
        fits = {choice: own for choice, own in measured[bucket].items() if bucket < barred.get(choice, bucket + 1)}
        return min(fits, key=lambda choice: fits[choice])

    def record(step: int, choice: Choice, seconds: float | None, _: float) -> None:
        if seconds is None:
            barred[choice] = min(_range(simulated.loads[step]), _range(simulated.known(step)))

    return played(simulated, choose, record)


def _range(load: Load) -> int:
    return bucket_of(load.mean_tokens, load.sequences).context


def played(
    simulated: SimulatedRun,
    choose: Callable[[int], Choice],
    record: Callable[[int, Choice, float | None, float], None],
    loads: Sequence[Load] | None = None,
) -> StrategyResult:
    """Simulate a run under a strategy. A step that runs out of memory is lost, and repeated.

    `choose` returns the choice of a step, and may add its load. `record` gets the step, the choice, its seconds (None:
    out of memory), and the seconds of a switch to it. `loads` replaces the run's.
    """
    random: Random = np.random.default_rng(simulated.seed + 2)
    loads = simulated.loads if loads is None else loads
    total, failures, current = 0.0, 0, None
    left: list[tuple[int, Choice]] = []
    backs: list[int] = []
    for step, noise in enumerate(simulated.noise.tolist()):
        done = False
        while not done:
            choice, switch = choose(step), 0.0
            if current not in (None, choice):
                switch = simulated.switch_seconds * float(np.exp(0.1 * random.standard_normal()))
                backs += [step] if any(own == choice and step - when < BACK_STEPS for when, own in left) else []
                left.append((step, current))
            current, number = choice, simulated.choices.index(choice)
            done = bool(loads[step].longest_tokens <= simulated.rooms[number])
            seconds = simulated.true(number, loads[step].mean_tokens) * (noise if done else 1.0)
            failures += not done
            total += switch + seconds
            record(step, choice, seconds if done else None, switch)
    return StrategyResult(total, len(left), most_within(backs), most_within(backs), failures)


def most_within(steps: list[int]) -> int:
    """The most of these steps in any 100 steps."""
    return max((sum(first <= step < first + BACK_STEPS for step in steps) for first in steps), default=0)


def _profile(selector: Selector, simulated: SimulatedRun) -> None:
    random: Random = np.random.default_rng(simulated.seed + 1)
    sequences = simulated.loads[0].sequences
    for tokens in PROFILED:
        load = Load(sequences, float(tokens), tokens, tokens)
        for choice, seconds in _measured(simulated, tokens, random).items():
            selector.measured(choice, load, seconds)


def _measured(simulated: SimulatedRun, tokens: float, random: Random) -> dict[Choice, float]:
    noise = np.exp(0.03 * random.standard_normal(len(simulated.choices)))
    return {
        choice: simulated.true(number, tokens) * float(noise[number])
        for number, choice in enumerate(simulated.choices)
        if tokens <= simulated.rooms[number]
    }


# An adversarial load: short contexts while the choice is fast for long ones, and the reverse.


def adversary(number: int, seed: int) -> dict[str, Any]:
    """One run: its loss against the best static choice in hindsight, and its switches."""
    own = replace(simulated_run(number, seed), rooms=np.full(8, LIMIT))  # so that memory forces no switch
    selector = Selector({own.stage: own.choices}, own, {own.stage: own.taken_for}, steps=STEPS)
    means = [load.mean_tokens for load in own.loads]
    short, long = min(means) / 2, min(2 * max(means), LIMIT / 2)  # beyond the means, other choices are the fastest
    rested = int(np.random.default_rng(own.seed + 3).integers(1, 40))  # steps after a switch until the load follows
    decisions: list[Decision] = []
    chosen: list[Choice] = []
    loads: list[Load] = []
    selector.record_load(-1, _load(short))

    def choose(step: int) -> Choice:
        decisions.append(selector.decide(own.stage, step))
        chosen.append(decisions[-1].choice)
        settled = len(chosen) > rested and len(set(chosen[-rested - 1 :])) == 1
        last = loads[-1] if loads else _load(short)
        loads.append(_load(_worse(own, chosen[-1], short, long)) if settled else last)
        return chosen[-1]

    def record(step: int, choice: Choice, seconds: float | None, switch: float) -> None:
        assert seconds is not None, "every choice fits"
        if switch:
            selector.switched(choice, switch)
        selector.measured(choice, loads[step], seconds)
        selector.record_load(step, loads[step])

    course = replace(played(own, choose, record, loads), unforced_backs=_free_backs(decisions))
    return {**asdict(course), "loss": course.seconds / static(replace(own, loads=tuple(loads))) - 1}


def _load(tokens: float) -> Load:
    return Load(64, tokens, int(2 * tokens), LIMIT)


def _worse(own: SimulatedRun, choice: Any, short: float, long: float) -> float:
    """The context, short or long, at which the choice loses more."""
    number = own.choices.index(choice)

    def loss(tokens: float) -> float:
        return own.true(number, tokens) / min(own.true(n, tokens) for n in range(len(own.choices)))

    return max((short, long), key=loss)


CANDIDATES = 64
ARMS = {
    f"{name}, {error:.0%}": (profiled, error)
    for name, profiled in (("profiled", True), ("unprofiled", False))
    for error in ERRORS
}
"""Whether layouts were measured when the job started, and the error of predictions."""
EVERY = 5
"""Every 5th run is also played with other errors of predictions, with and without a profile."""


def run(histories: int = 1000, seed: int = 0, processes: int = 1) -> dict[str, Any]:
    """Simulate `histories` runs, and a tenth as many with an adversary. See `earl bench selector --help`."""
    rows = _mapped(partial(_losses, seed=seed), range(histories), processes)
    against = _mapped(partial(adversary, seed=seed), range(max(1, histories // 10)), processes)
    families = sorted(grouped(rows, itemgetter("family")).items())
    return {
        "histories": histories,
        "seed": seed,
        "loss": {way: _spread([row[way] for row in rows]) for way in ("selector", "by_range", "static")},
        "errors": {arm: _spread([row[arm] for row in rows if arm in row]) for arm in ARMS},
        "selector": _counts(rows),
        "families": {name: _spread([row["selector"] for row in own]) for name, own in families},
        "adversary": {**_spread([row["loss"] for row in against]), **_counts(against)},
        "decide_ms": decide_ms(simulated_run(0, seed)),
    }


def decide_ms(example: SimulatedRun) -> float:
    """Median CPU milliseconds of a decision among 64 candidates, after 100 steps."""
    few = example.choices
    many = [replace(few[n % len(few)], layout=Layout(dp=n + 1)) for n in range(CANDIDATES)]
    of = dict(zip(many, cycle(few), strict=False))
    predictor: Any = SimpleNamespace(
        seconds=lambda choice, load: example.seconds(of[choice], load),
        obstacle=lambda choice, load: example.obstacle(of[choice], load),
    )
    selector = Selector({example.stage: many}, predictor, {example.stage: 1.0})
    for step, load in enumerate(example.loads[:100]):
        selector.record_load(step, load)
        selector.measured(many[step % CANDIDATES], load, 1.0)
    took = []
    for step in range(100, 150):
        selector.measured(many[step % CANDIDATES], example.loads[step], 1.0)
        began = time.process_time()
        selector.record_load(step, example.loads[step])
        selector.decide(example.stage, step)
        took.append(1000 * (time.process_time() - began))
    return float(np.median(took))


def _losses(number: int, seed: int) -> dict[str, Any]:
    own = simulated_run(number, seed)
    best, course = clairvoyant(own), selected(own)
    return {
        **asdict(course),
        "family": own.family,
        "selector": course.seconds / best - 1,
        **({arm: _loss(number, seed, arm) for arm in ARMS} if number % EVERY == 0 else {}),
        "by_range": by_range(own).seconds / best - 1,
        "static": static(own) / best - 1,
    }


def _loss(number: int, seed: int, arm: str) -> float:
    profiled, error = ARMS[arm]
    own = simulated_run(number, seed, error)
    return selected(own, profiled).seconds / clairvoyant(own) - 1


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
