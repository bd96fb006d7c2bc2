"""How close the Parallelism Selector comes to one who knows what comes, on simulated runs.

worlds (worlds.py) ─▶ selector, paper's rule, best static choice, clairvoyant (courses.py) ─▶ losses, as shares
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from earl.benchmarks.courses import by_range, clairvoyant, selected, static
from earl.benchmarks.oscillation import adversary
from earl.benchmarks.worlds import World, world
from earl.parallel.choice import Choice
from earl.parallel.layout import Layout
from earl.parallel.selector.selector import Selector

CANDIDATES = 64
EVERY = 17
"""One run in so many is played without measured layouts too; with 16 shapes, each comes its turn."""


def run(histories: int = 1000, seed: int = 0, processes: int = 1) -> dict[str, Any]:
    """Simulate so many runs, and a tenth as many against an adversary.

    Returns:
        `loss`: seconds beyond the clairvoyant's as a share of these, by way of choosing: mean, p95, worst and the share
        within 3 %; `selector`: switches of a run, the most switches back in any 100 steps, steps that ran out of
        memory; `families`: mean and worst loss by shape of growth; `adversary`: loss against the best static choice,
        switches and switches back; `decide_ms`: processor time of a decision among 64 candidates.
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


def decide_ms(example: World) -> float:
    """Median milliseconds of processor time of a decision among 64 candidates, of a run that has seen 100 steps."""
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
    """Many choices that take what a few do."""

    def __init__(self, example: World, many: Sequence[Choice]) -> None:
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
    """Of what is finite: a static choice may not exist."""
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
