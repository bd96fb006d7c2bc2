"""Algorithms beside each other on exact games: the same start, opponents and episodes, seed by seed.

each algorithm × step sizes ─▶ its best step size ─▶ × seeds ─▶ strength at equal episodes, at equal time
"""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from earl.algorithms.registry import ALGORITHMS, algorithm
from earl.benchmarks.repeats import interval
from earl.benchmarks.training import ASIDE, trained
from earl.config import Config
from earl.errors import EarlError, unknown
from earl.matches import by_opponent, mean_over_seats
from earl.preflight import preflight
from earl.recipe import build, load_toml, override
from earl.runs.store import Numbers, read_numbers

JUDGES = ("perfect", "random")
"""Held-out opponents: what a run's best weights are judged by."""
RATES = (5e-4, 1e-3, 2e-3)
GROUP = 16
"""Episodes of a group, where an algorithm compares them; else the recipe's."""
SEARCHED = 1_000_000
"""The seed of the search, which is none of those that are reported."""


class Reached(NamedTuple):
    """A run's best weights, judged exactly by the recipe's held-out opponents; means over both seats."""

    not_lost: float  # against perfect play
    won: float  # against random play


class Course(NamedTuple):
    reached: Reached
    survived: list[tuple[float, float]]
    """By evaluation: seconds of all steps until then, evaluations aside, and the share of games not lost."""

    def within(self, seconds: float) -> float:
        """The largest share not lost by then; the first one where that came later."""
        return max([share for spent, share in self.survived if spent <= seconds] or [self.survived[0][1]])


def run(
    root: Path,
    config: Path,
    names: Sequence[str],
    seeds: int,
    steps: int,
    rates: Sequence[str],
    assignments: Sequence[str],
) -> dict[str, Any]:
    """For the result see `earl bench learn --help`."""
    if strange := [name for name in names if name not in ALGORITHMS]:
        raise unknown("algorithm", strange[0], [*ALGORITHMS])
    runs, rows, apart = LearningRuns(root, common(config, steps, assignments)), [], []
    for name in names or [*ALGORITHMS]:
        try:
            preflight(runs.configured(name, RATES[0], 0), root)
        except EarlError as error:
            apart.append({"algorithm": name, "why": str(error)})
            continue
        rate = runs.best_rate(name, [*map(_rate, rates)] or RATES)
        rows.append((name, rate, [runs.course(name, rate, seed) for seed in range(seeds)]))
    if not rows:
        raise EarlError(f"none of the algorithms can be compared: {apart[0]['why']}")
    least = [min(courses[seed].survived[-1][0] for *_, courses in rows) for seed in range(seeds)]
    summaries = [_summary(name, rate, courses, least) for name, rate, courses in rows]
    episodes = steps * runs.common.rollout.episodes
    return {"episodes": episodes, "seeds": seeds, "seconds": least, "algorithms": summaries, "left_out": apart}


def common(path: Path, steps: int, assignments: Sequence[str]) -> Config:
    """What all runs share. Raises EarlError for a recipe whose evaluation does not judge runs exactly."""
    made = build(override(load_toml(path), [*assignments, f"run.steps={steps}", "run.processes=1"]))
    judged = made.evaluate
    if not judged.exact or not {*JUDGES} <= {*judged.held_out} or not judged.every:
        raise EarlError(
            f"{path}: runs are judged by evaluate.held_out = {[*JUDGES]} with evaluate.exact = true and "
            f"evaluate.every above 0, and it has {judged.held_out}, {judged.exact} and {judged.every}; set these"
        )
    return made


class LearningRuns(NamedTuple):
    root: Path
    common: Config

    def configured(self, name: str, rate: float, seed: int) -> Config:
        own = [f"algorithm.name={name}", f"learner.learning_rate={rate}", f"learner.final_learning_rate={rate / 10}"]
        tree = self.common.model_dump(exclude_unset=True)
        if name != self.common.algorithm.name:
            tree["algorithm"] = {key: value for key, value in tree["algorithm"].items() if key != "options"}
            own += [f"rollout.group_size={GROUP}"] * algorithm(name).needs_groups
        return build(override(tree, [*own, f"run.seed={seed}"]))

    def course(self, name: str, rate: float, seed: int) -> Course:
        """A run that is there is taken, or goes on."""
        config = self.configured(name, rate, seed)
        folder = trained(self.root, f"{name.replace('+', 'p')}-{rate:g}-{seed}", config)
        return course_of(read_numbers(folder.database), config.warm_start.steps)

    def best_rate(self, name: str, rates: Sequence[float]) -> float:
        if len(rates) == 1:
            return rates[0]
        return max(rates, key=lambda rate: self.course(name, rate, SEARCHED).reached)


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise EarlError(f"--rate {text!r} is no number; write a step size such as 1e-3") from None


def course_of(numbers: Numbers, warm: int) -> Course:
    """What a run reached, and its evaluations after the steps of imitation."""
    survived, spent = [], 0.0
    for step in range(warm + 1, (numbers.last_step or 0) + 1):
        spent += sum(dict(own).get(step, 0.0) for stage, own in numbers.timings.items() if stage not in ASIDE)
        met = by_opponent(one.result for one in numbers.matches if (one.step, one.phase) == (step, "train"))
        if met:
            losses = [mean_over_seats(own).loss for own in met.values()]
            survived.append((spent, 1 - sum(losses) / len(losses)))
    judged = by_opponent(one.result for one in numbers.matches if one.phase == "final")
    means = {opponent: mean_over_seats(own) for (opponent, _), own in judged.items()}
    return Course(Reached(1 - means["perfect"].loss, means["random"].win), survived)


def _summary(name: str, rate: float, courses: Sequence[Course], least: Sequence[float]) -> dict[str, Any]:
    return {
        "algorithm": name,
        "rate": rate,
        "not_lost": interval([course.reached.not_lost for course in courses]),
        "won": interval([course.reached.won for course in courses]),
        "survived": interval([course.within(inf) for course in courses]),
        "survived_in_equal_time": interval([*map(Course.within, courses, least)]),
        "seconds": interval([course.survived[-1][0] for course in courses]),
    }
