"""Benchmarks that train one recipe in several arms, of arms.toml, seed by seed.

ceiling       the cost of a context limit where better play makes longer games
collapse      thinking that pays grows into the context limit
asynchronous  rollout ahead of the learner, with slow environments
adaptive      layouts that follow the contexts against layouts that stay, under a memory budget
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from earl import evaluation
from earl.benchmarks.repeats import interval, intervals
from earl.benchmarks.training import ASIDE, by_step, recipe, trained
from earl.config import Config
from earl.engine.model import load
from earl.errors import EarlError
from earl.matches import wilson
from earl.placement.embedded import judge
from earl.recipe import build, load_toml, override
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.store import Numbers, read_numbers
from earl.runs.summary import FINAL

ARMS = load_toml(Path(__file__).with_name("arms.toml"))


def shared(benchmark: str, assignments: Sequence[str]) -> Config:
    """What all arms of a benchmark have in common, with the assignments of `--set`."""
    return recipe(ARMS[benchmark]["env"], [*ARMS[benchmark]["shared"], *assignments])


def by_arm(
    root: Path, benchmark: str, seeds: int, steps: int, assignments: Sequence[str]
) -> dict[str, list[RunFolder]]:
    """Train every arm of a benchmark, seed by seed; existing runs are continued."""
    arms: dict[str, list[str]] = ARMS[benchmark]["arms"]
    folders: dict[str, list[RunFolder]] = {arm: [] for arm in arms}
    for seed in range(seeds):
        for arm, settings in arms.items():
            config = shared(benchmark, [f"run.steps={steps}", f"run.seed={seed}", *settings, *assignments])
            folders[arm].append(trained(root, f"{arm}-seed{seed}", config))
    return folders


# Tic-Tac-Toe with full history against strong opponents: a draw as first player takes five rounds, and 72 tokens hold
# four. The arms differ only in the limit: 72, 120, and "auto" that begins at 72.


def ceiling(root: Path, seeds: int, steps: int, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """For the result see `earl bench ceiling --help`."""
    runs = by_arm(root, "ceiling", seeds, steps, assignments)
    result = _compared(runs, _against_perfect, seeds=seeds, steps=steps, runs=str(root))
    means = {arm: mean(_against_perfect(folder)["not_lost"] for folder in own) for arm, own in runs.items()}
    return {**result, **{f"auto_minus_{limit}": means["auto"] - means[limit] for limit in ("120", "72")}}


def _compared(
    by_arm: dict[str, list[RunFolder]], measured: Callable[[RunFolder], dict[str, float]], **facts: object
) -> dict[str, Any]:
    return {**facts, **{arm: intervals([measured(folder) for folder in own]) for arm, own in by_arm.items()}}


def _against_perfect(folder: RunFolder) -> dict[str, float]:
    found = read_numbers(folder.database)
    perfect = [match.result for match in found.matches if match.phase == FINAL and match.result.opponent == "perfect"]
    last = {name: points[-1][1] for name, points in found.metrics.items()}
    return {
        "not_lost": mean(result.win + result.draw for result in perfect),
        "cut": last["truncation/prompt"] + last["truncation/reply"],
        "limit": last["context/limit"],
    }


# Figure 1 of the EARL paper (arXiv 2510.05943) at small scale. There a 4B model learns Tic-Tac-Toe, its turns grow
# under reward, at step 13 episodes reach the limit of 8,192 tokens, and after step 15 the return collapses. Here a
# small model works out chains of 4 … 16 operations in writing, without the calculator. Its teacher stops early at
# random, so that at first it thinks too little, and longer thinking raises the reward. A limit of 60 tokens is enough
# for chains of up to 10 operations; 96 for all.

SMOOTHED = 5
"""Steps that are averaged before the best, the first or the last reward is taken."""
CUT = 0.1
"""A step counts as cut from this share of its episodes that met the limit."""


def collapse(root: Path, seeds: int, steps: int, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """For the result see `earl bench collapse --help`."""
    runs = by_arm(root, "collapse", seeds, steps, assignments)
    return _compared(runs, reward_and_length, seeds=seeds, steps=steps, runs=str(root))


def reward_and_length(folder: RunFolder) -> dict[str, float]:
    found = read_numbers(folder.database).metrics
    metrics = {name: np.array([value for _, value in points]) for name, points in found.items()}
    reward = smoothed(metrics["reward"])
    # An unfinished episode has reward -1 and is not solved; a solved chain has reward 1.
    solved = smoothed(metrics["reward"] + 1 - metrics["stop/finished"])
    reply = smoothed(metrics["tokens/sampled"] / metrics["episodes"])
    cut = metrics["truncation/prompt"] + metrics["truncation/reply"]
    return {
        "reward_first": reward[0],
        "reward_best": max(reward),
        "best_step": float(reward.index(max(reward)) + 1),
        "reward_last": reward[-1],
        "fallen": max(reward) - reward[-1],
        "solved_first": solved[0],
        "solved_last": solved[-1],
        "reply_first": reply[0],
        "reply_last": reply[-1],
        "cut_last": smoothed(cut)[-1],
        "limit_last": float(metrics["context/limit"][-1]),
        "cut_steps": float((cut >= CUT).sum()),
    }


def smoothed(values: NDArray[np.float64]) -> list[float]:
    """Means over SMOOTHED consecutive values, or over all if there are fewer."""
    means: list[float] = sliding_window_view(values, min(SMOOTHED, len(values))).mean(axis=1).tolist()
    return means


# Rollout ahead of the learner against synchronous training, with slow environments whose delays have a heavy tail.

SETTLING = 4
"""Steps of reinforcement learning that do not count: rollout gets ahead in the first of them."""
OPPONENTS = ("random", "perfect")
GAMES = 1000
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t with 1, 2, … degrees of freedom; beyond 9 the value for 9 is used, which is conservative."""


def asynchronous(root: Path, seeds: int, steps: int, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """For the result see `earl bench asynchronous --help`."""
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


# Adaptive against static layouts, under a memory budget per process: arithmetic chains grow longer from step to step,
# and four ranks and four samplers on this machine take turns. The arm "unbounded" has the layout of the shortest
# contexts without a budget: the reference for losses. Of static layouts small ones run out of memory, large ones are
# slow.

RECIPE = load_toml(Path(__file__).with_name("adaptive.toml"))
LOSSES = ("loss", "value_loss", "entropy")


def adaptive(root: Path, arms: Sequence[str] = (), assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, or only `arms`; ended runs in `root` are read. See `earl bench adaptive --help`."""
    rows: dict[str, dict[str, Any]] = {}
    expected: dict[tuple[str, int], float] = {}
    for name, settings in ARMS["adaptive"]["arms"].items():
        if arms and name not in arms:
            continue
        config = build(override(RECIPE, [*settings, *assignments]))
        folder = _ended(root, name.replace(", ", "-").replace(" ", "-"), config)
        found = read_numbers(folder.database)
        losses = {(loss, step): value for loss in LOSSES for step, value in found.metrics.get(loss, [])}
        expected = losses if name == "unbounded" else expected
        apart = [abs(losses[key] - expected[key]) for key in losses.keys() & expected.keys()]
        rows[name] = {**_row(folder, found), "difference": max(apart, default=None)}
    static = [name for name in rows if name not in ("unbounded", "adaptive")]
    feasible = [rows[name]["seconds"] for name in static if not rows[name]["out_of_memory"]]
    return {
        "budget_bytes": build(override(RECIPE, assignments)).placement.memory_bytes,
        "arms": rows,
        "speedup": min(feasible) / rows["adaptive"]["seconds"] if "adaptive" in rows and feasible else None,
    }


def _ended(root: Path, name: str, config: Config) -> RunFolder:
    """Train to the end or until memory runs out. What ended it is kept in `ended.txt`."""
    folder, message = RunFolder(root / name), ""
    ended = folder.path / "ended.txt"
    if not ended.exists():
        try:
            trained(root, name, config)
        except EarlError as error:
            message = str(error)
            if "ran out of memory" not in message:
                raise
        ended.write_text(message, encoding="utf-8")
    return folder


def _row(folder: RunFolder, found: Numbers) -> dict[str, Any]:
    metrics = {name: [value for _, value in points] for name, points in found.metrics.items()}
    timings = {stage: points for stage, points in found.timings.items() if stage not in ASIDE}
    seconds = {stage: sum(value for step, value in points if step) for stage, points in timings.items()}
    told = [(event.kind, event.step, event.message) for event in found.events]
    switches = Counter(message.partition(":")[0] for kind, _, message in told if kind == "layout")
    return {
        "seconds": sum(seconds.values()),
        "steps": found.metrics["loss"][-1][0] if "loss" in metrics else 0,
        "out_of_memory": (folder.path / "ended.txt").read_text(encoding="utf-8") or None,
        "peak_bytes": max(metrics.get("memory/peak_bytes", [0.0])),
        "peaks": {name: max(values) for name, values in metrics.items() if "peak_bytes/" in name},
        "episodes": sum(metrics.get("episodes", [])),
        "switch_seconds": seconds.get("switch", 0.0),
        "stages": seconds,
        "switches": {stage: switches[stage] for stage in ("rollout", "update")},
        "told": [one for one in told if one[0] in ("layout", "out_of_memory")],
    }
