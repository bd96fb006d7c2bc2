"""The opponents of a step: drawn by their shares and by the results against them, a pool of the run's own checkpoints,
and an exploiter that repeats the games which the last evaluation lost. Games against the policy itself may begin at
positions that it lost from, most often where it wins some and loses some."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from random import Random
from statistics import fmean, pvariance

from earl.agents.scripted.registry import AFTER, EXPLOITER, PAST, SELF, is_self
from earl.config import OneEnvConfig
from earl.matches import MatchResult
from earl.trajectory import Outcome, PlayedGroups, Task

DECAY = 0.9
LEAST = 0.01
"""Least weight of an opponent that teaches nothing: it is still played, so that a relapse shows."""
POINTS = {Outcome.WIN: 1.0, Outcome.DRAW: 0.5, Outcome.LOSS: 0.0}

Preferences = Mapping[str, float]
"""By environment and opponent (or level), the running mean of what its share is multiplied by."""


def outcome_variance(chance: float) -> float:
    """Variance of an outcome of that probability: the larger, the more the results teach."""
    return chance * (1 - chance)


MEASURES: Mapping[str, tuple[Callable[[Sequence[float]], float], float]] = {
    "hard": (lambda points: 1 - fmean(points), 0.5),
    "informative": (pvariance, outcome_variance(0.5)),
}
"""By `env.prefer`, a measure of the results of a group, and its value before any is known. `hard` is prioritised
fictitious self-play (AlphaStar, Vinyals et al. 2019)."""


@dataclass(frozen=True, slots=True)
class OpponentPool:
    """What a run knows of its opponents when a step is drawn."""

    preferences: Preferences
    checkpoints: Sequence[str]  # the names that PAST stands for
    starts: "Mapping[str, Start]" = field(default_factory=dict)
    labelled: bool = False  # whether the teacher is asked beside the policy
    lost: "Sequence[LostGame]" = ()

    def shares(self, env: OneEnvConfig, course: float = 0.0) -> dict[str, float]:
        """Opponent (or level) → share, once that share of the run is done. The policy itself keeps the share that it is
        given; the others share theirs by share × preference."""
        met: dict[str, float] = {}
        for name, share in env.shares_at(course).items():
            members = (self.checkpoints or [SELF]) if name == PAST else [name]
            for member in members:
                met[member] = met.get(member, 0.0) + share / len(members)
        others = {name: share for name, share in met.items() if name != SELF}
        preferred = {name: share * self._weight(env, name) for name, share in others.items()}
        scale = sum(others.values()) / sum(preferred.values()) if preferred else 1.0
        return {name: share if name == SELF else preferred[name] * scale for name, share in met.items()}

    def _weight(self, env: OneEnvConfig, name: str) -> float:
        if env.prefer == "none":
            return 1.0
        return max(LEAST, self.preferences.get(f"{env.name} {name}", MEASURES[env.prefer][1]))


EMPTY = OpponentPool({}, ())


def preferences_after(known: Preferences, envs: Mapping[str, OneEnvConfig], groups: PlayedGroups) -> dict[str, float]:
    """w ← DECAY·w + (1 - DECAY)·(mean of the measure over the step's groups)."""
    found: dict[str, tuple[float, list[float]]] = {}
    for group in groups:
        prefer, name = envs[group.task.env].prefer, group.task.opponent
        name = EXPLOITER if name.startswith(EXPLOITER) else name
        if prefer != "none" and name and not is_self(name):
            measure, before = MEASURES[prefer]
            measured = found.setdefault(f"{group.task.env} {name}", (before, []))[1]
            measured.append(measure([POINTS[played.outcome] for played in group.trajectories]))
    moved = {key: DECAY * known.get(key, before) + (1 - DECAY) * fmean(own) for key, (before, own) in found.items()}
    return {**known, **moved}


MOST_STARTS = 2000
"""Positions that are remembered; the oldest are forgotten."""
HELD_DECAY = 0.8


@dataclass(frozen=True, slots=True)
class Start:
    moves: str
    """From the beginning of the game to the position, with spaces between them."""
    held: float
    """Running share of the games through it that the seat to move did not lose."""


@dataclass(frozen=True, slots=True)
class VisitedPosition:
    """A position in which the policy was to move, in a game against itself."""

    env: str
    seen: str  # by the seat to move
    moves: str
    lost: bool  # by this seat, in the end


def starts_after(starts: Mapping[str, Start], passed: Iterable[VisitedPosition]) -> dict[str, Start]:
    """By environment and what is seen, with the positions of lost games, and with the results of all that are known."""
    moved = dict(starts)
    for one in passed:
        key = f"{one.env} {one.seen}"
        if key in moved or one.lost:
            known = moved.get(key, Start(one.moves, 0.5))
            moved[key] = Start(known.moves, HELD_DECAY * known.held + (1 - HELD_DECAY) * (not one.lost))
    return dict(islice(moved.items(), max(0, len(moved) - MOST_STARTS), None))


def draw_starts(starts: Mapping[str, Start], env: str, count: int, rng: Random) -> list[str]:
    """`count` draws of SELF after the moves to a position, by held·(1 - held); none where none is known."""
    own = [start for key, start in starts.items() if key.startswith(f"{env} ")]
    weights = [max(LEAST, outcome_variance(start.held)) for start in own]
    return [AFTER + one.moves for one in rng.choices(own, cum_weights=[*accumulate(weights)], k=count)] if own else []


@dataclass(frozen=True, slots=True)
class LostGame:
    """A game that the policy lost in evaluation."""

    env: str
    seat: int
    moves: str
    """Of both sides, with spaces between them."""


def lost_games(results: Iterable[MatchResult]) -> tuple[LostGame, ...]:
    return (*dict.fromkeys(LostGame(result.env, result.seat, moves) for result in results for moves in result.lost),)


def exploiter_task(task: Task, lost: Sequence[LostGame], rng: Random) -> Task:
    """A game against the exploiter along one of the lost lines, from the seat that lost it; as it is where none is
    known."""
    own = [line for line in lost if line.env == task.env]
    if task.opponent != EXPLOITER or not own:
        return task
    line = rng.choice(own)
    return replace(task, seat=line.seat, opponent=f"{EXPLOITER}:{line.moves}")


def add_to_pool(pool: Sequence[int], step: int, size: int) -> tuple[int, ...]:
    """The pool's steps with another one. Above `size`, the one that is closest to the one before it leaves, so that
    the oldest and the newest stay, and those between lie apart."""
    steps = [*pool, step]
    if len(steps) > size:
        gaps = [later - earlier for earlier, later in pairwise(steps[:-1])]
        del steps[1 + gaps.index(min(gaps)) if gaps else 0]
    return tuple(steps)
