"""Algorithms beside each other on exact games: the same start, opponents and episodes, seed by seed.

each algorithm × step sizes ─▶ its best step size ─▶ × seeds ─▶ strength at equal episodes, at equal time
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from earl.algorithms.registry import ALGORITHMS
from earl.benchmarks.repeats import interval
from earl.benchmarks.training import ASIDE, recipe, trained
from earl.config import Config
from earl.errors import EarlError, unknown
from earl.matches import by_opponent, mean_over_seats
from earl.preflight import preflight
from earl.recipe import build, override
from earl.runs.store import Numbers, read_numbers

SECTIONS: dict[str, dict[str, Any]] = {
    "warm_start": {"steps": 20, "teacher": "random", "episodes": 600, "minibatches": 24},
    "algorithm": {"kl": 0.05, "kl_estimator": "k2"},  # to random legal moves: keeps moves alive, and illegal ones away
    "evaluate": {"opponents": ["perfect", "random"], "exact": True, "every": 10},
}
"""In place of those of the packaged recipe: from the format of a reply alone, without a solver."""
OPPONENTS = {"random": 1, "exploiter": 1}
RATES = (5e-4, 1e-3, 2e-3)
SEARCHED = 1_000_000
"""The seed of the search, which is none of those that are reported."""


class Reached(NamedTuple):
    """An evaluation: exact, means over both seats."""

    not_lost: float  # against perfect play
    won: float  # against random play
    seconds: float  # of all steps until then, evaluations aside


def run(
    root: Path,
    env: str,
    names: Sequence[str],
    seeds: int,
    steps: int,
    rates: Sequence[str],
    assignments: Sequence[str],
) -> dict[str, Any]:
    """For the result see `earl bench learn --help`."""
    if strange := [name for name in names if name not in ALGORITHMS]:
        raise unknown("algorithm", strange[0], [*ALGORITHMS])
    runs, rows, apart = LearningRuns(root, common(env, steps, assignments)), [], []
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
    least = [min(courses[seed][-1].seconds for *_, courses in rows) for seed in range(seeds)]
    summaries = [_summary(name, rate, courses, least) for name, rate, courses in rows]
    episodes = steps * runs.common.rollout.episodes
    return {"episodes": episodes, "seeds": seeds, "seconds": least, "algorithms": summaries, "left_out": apart}


def common(env: str, steps: int, assignments: Sequence[str]) -> Config:
    """What all runs share."""
    tree = recipe(env, []).model_dump(exclude_unset=True)
    tree |= {**SECTIONS, "env": {**tree["env"], "opponents": OPPONENTS}, "run": {"steps": steps, "processes": 1}}
    tree["agent"] = {**tree.get("agent", {}), "forfeit_reward": -2.0}  # no move is worse than a legal one
    return build(override(tree, assignments))


class LearningRuns(NamedTuple):
    root: Path
    common: Config

    def configured(self, name: str, rate: float, seed: int) -> Config:
        own = [f"algorithm.name={name}", f"learner.learning_rate={rate}", f"learner.final_learning_rate={rate / 10}"]
        return build(override(self.common.model_dump(exclude_unset=True), [*own, f"run.seed={seed}"]))

    def course(self, name: str, rate: float, seed: int) -> list[Reached]:
        """The evaluations of reinforcement learning. A run that is there is taken, or goes on."""
        config = self.configured(name, rate, seed)
        folder = trained(self.root, f"{name.replace('+', 'p')}-{rate:g}-{seed}", config)
        return course_of(read_numbers(folder.database), config.warm_start.steps)

    def best_rate(self, name: str, rates: Sequence[float]) -> float:
        if len(rates) == 1:
            return rates[0]
        return max(rates, key=lambda rate: max(self.course(name, rate, SEARCHED)))


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise EarlError(f"--rate {text!r} is no number; write a step size such as 1e-3") from None


def course_of(numbers: Numbers, warm: int) -> list[Reached]:
    """The evaluations after the steps of imitation."""
    points, spent = [], 0.0
    for step in range(warm + 1, (numbers.last_step or 0) + 1):
        spent += sum(dict(own).get(step, 0.0) for stage, own in numbers.timings.items() if stage not in ASIDE)
        met = by_opponent(one.result for one in numbers.matches if (one.step, one.phase) == (step, "train"))
        means = {opponent: mean_over_seats(own) for (opponent, _), own in met.items()}
        if means.keys() >= {"perfect", "random"}:
            points.append(Reached(1 - means["perfect"].loss, means["random"].win, spent))
    return points


def _summary(name: str, rate: float, courses: Sequence[Sequence[Reached]], least: Sequence[float]) -> dict[str, Any]:
    """The strongest weights of each seed: of all steps, and of those within the seconds of the quickest algorithm."""
    whole = [max(course, key=lambda one: one[:2]) for course in courses]
    timely = [
        max([one for one in course if one.seconds <= most] or course[:1], key=lambda one: one[:2])
        for course, most in zip(courses, least, strict=True)
    ]
    return {
        "algorithm": name,
        "rate": rate,
        "not_lost": interval([one.not_lost for one in whole]),
        "won": interval([one.won for one in whole]),
        "not_lost_in_equal_time": interval([one.not_lost for one in timely]),
        "seconds": interval([course[-1].seconds for course in courses]),
    }
