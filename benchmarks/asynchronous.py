"""Rollout ahead of the learner against synchronous training, with slow environments whose delays have a heavy tail."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from earl import evaluation
from earl.benchmarks.repeats import interval
from earl.benchmarks.training import by_arm, by_step, shared
from earl.config import Config
from earl.engine.model import load
from earl.matches import wilson
from earl.placement.embedded import judge
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.store import read_numbers

SETTLING = 4
"""Steps of reinforcement learning that do not count: rollout gets ahead in the first of them."""
OPPONENTS = ("random", "perfect")
GAMES = 1000
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t with 1, 2, … degrees of freedom; beyond 9 the value for 9 is used, which is conservative."""


def run(root: Path, seeds: int = 6, steps: int = 40, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm by seed; existing runs are continued. For the result see `earl bench asynchronous --help`."""
    folders = by_arm(root, "asynchronous", seeds, steps, assignments)
    config = shared("asynchronous", [f"run.steps={steps}", *assignments, "env.delay_seconds=0"])
    stages = {arm: [_steps(folder, config) for folder in own] for arm, own in folders.items()}
    times = {arm: [[sum(step.values()) for step in run] for run in own] for arm, own in stages.items()}
    counts = {arm: [_not_lost(folder, config) for folder in own] for arm, own in folders.items()}
    played, [first, *others] = seeds * GAMES * 2, folders
    return {
        "seeds": seeds,
        "steps": steps,
        "episodes": config.rollout.episodes,
        "delay_seconds": shared("asynchronous", assignments).env.delay_seconds,
        "games": played,
        **{
            arm: {
                "seconds": interval([seconds for run in times[arm] for seconds in run]),
                "waited": median(step["rollout"] for run in stages[arm] for step in run),
                "staleness_max": max(map(_staleness, folders[arm])),
                "not_lost": {name: _share(sum(own[name] for own in counts[arm]), played) for name in OPPONENTS},
            }
            for arm in folders
        },
        "speedup": {
            arm: interval([median(a) / median(b) for a, b in zip(times[first], times[arm], strict=True)])
            for arm in others
        },
        "not_lost_minus_synchronous": {
            arm: {name: difference(_ahead(counts[arm], counts[first], name)) for name in OPPONENTS} for arm in others
        },
    }


def _steps(folder: RunFolder, config: Config) -> list[dict[str, float]]:
    timings = read_numbers(folder.database).timings
    return by_step(timings, config.warm_start.steps + SETTLING + 1, config.total_steps - 1)


def _staleness(folder: RunFolder) -> float:
    points = read_numbers(folder.database).metrics.get("staleness/max", [])
    return max((value for _, value in points), default=0.0)


def _not_lost(folder: RunFolder, config: Config) -> dict[str, int]:
    """Games against each opponent, from both seats, that the last weights did not lose."""
    latest = checkpoint.latest(folder.checkpoints)
    assert latest is not None, "a run that has ended left a checkpoint"
    player = judge(config, load(latest))
    asked = evaluation.matches(player.world, OPPONENTS, False, GAMES)
    results = [evaluation.evaluate(player.world, player.sampler, match) for match in asked]
    return {name: round(sum(GAMES * (r.win + r.draw) for r in results if r.opponent == name)) for name in OPPONENTS}


def _ahead(ours: list[dict[str, int]], theirs: list[dict[str, int]], name: str) -> list[float]:
    return [(a[name] - b[name]) / (GAMES * 2) for a, b in zip(ours, theirs, strict=True)]


def _share(count: int, games: int) -> dict[str, float]:
    low, high = wilson(count, games)
    return {"share": count / games, "low": low, "high": high}


def difference(shares: Sequence[float]) -> dict[str, float]:
    """Mean difference over seeds with its 95 % interval (paired t). With one seed the interval is [-1, 1]."""
    found = mean(shares)
    if len(shares) < 2:
        return {"share": found, "low": -1.0, "high": 1.0}
    half = T_975[min(len(shares) - 1, len(T_975)) - 1] * stdev(shares) / math.sqrt(len(shares))
    return {"share": found, "low": found - half, "high": found + half}
