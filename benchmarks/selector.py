"""How close the Parallelism Selector comes to perfect foresight, on simulated runs.

simulated_runs.py ─▶ selector, paper's rule, best static choice, clairvoyant (selection_strategies.py) ─▶ losses
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from earl.benchmarks.selection_strategies import by_range, clairvoyant, played, selected, static
from earl.benchmarks.simulated_runs import LIMIT, STEPS, SimulatedRun, world
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.selector.selector import Selector

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
