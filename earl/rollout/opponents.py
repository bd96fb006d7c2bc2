"""Whom a step meets: opponents by their shares and by how hard they are, and a pool of the run's own checkpoints; and
where games against the policy itself begin: positions that it lost from, those first that it neither always loses from
nor never."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from random import Random

from earl.config import OneEnvConfig
from earl.rollout.self_play import AFTER, PAST, SELF, is_self
from earl.trajectory import Outcome, PlayedGroups

DECAY = 0.9
LEAST = 0.05
"""Weight of an opponent that always loses: it is still met, and so a relapse is seen."""
POINTS = {Outcome.WIN: 1.0, Outcome.DRAW: 0.5, Outcome.LOSS: 0.0}

Scores = Mapping[str, float]
"""The policy's running mean result against each opponent: 1 for a win, 0.5 for a draw."""


@dataclass(frozen=True, slots=True)
class OpponentPool:
    """What a run knows of its opponents when a step is drawn."""

    scores: Scores
    checkpoints: Sequence[str]  # the names that PAST stands for
    starts: "Mapping[str, Start]" = field(default_factory=dict)

    def shares(self, env: OneEnvConfig) -> dict[str, float]:
        """Opponent → share. The policy itself keeps the share that it is given; the others share theirs by
        share × (1 - score)^prefer_hard: prioritised fictitious self-play (AlphaStar, Vinyals et al. 2019)."""
        met: dict[str, float] = {}
        for name, share in env.opponents.items():
            members = (self.checkpoints or [SELF]) if name == PAST else [name]
            for member in members:
                met[member] = met.get(member, 0.0) + share / len(members)
        others = {name: share for name, share in met.items() if name != SELF}
        hard = {name: share * self._weight(name) ** env.prefer_hard for name, share in others.items()}
        scale = sum(others.values()) / sum(hard.values()) if hard else 1.0
        return {name: share if name == SELF else hard[name] * scale for name, share in met.items()}

    def _weight(self, name: str) -> float:
        return max(LEAST, 1 - self.scores.get(name, 0.5))


EMPTY = OpponentPool({}, ())


def scores_after(scores: Scores, groups: PlayedGroups) -> dict[str, float]:
    """s ← DECAY·s + (1 - DECAY)·(mean result of the step against the opponent)."""
    results: dict[str, list[float]] = {}
    for group in groups:
        points = [POINTS[played.outcome] for played in group.trajectories]
        results.setdefault(group.task.opponent, []).extend(points)
    moved = dict(scores)
    for name, points in results.items():
        if name and not is_self(name):
            moved[name] = DECAY * scores.get(name, 0.5) + (1 - DECAY) * sum(points) / len(points)
    return moved


MOST_STARTS = 2000
"""Positions that are remembered; the oldest are forgotten."""
HELD_DECAY = 0.8
LEAST_START = 0.01
"""Weight of a position that is always or never lost from."""


@dataclass(frozen=True, slots=True)
class Start:
    moves: str
    """From the beginning of the game to the position, with spaces between them."""
    held: float
    """Running share of the games through it that the seat to move did not lose."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A position in which the policy was to move, in a game against itself."""

    env: str
    seen: str  # by the seat to move
    moves: str
    lost: bool  # by this seat, in the end


def starts_after(starts: Mapping[str, Start], passed: Iterable[Passed]) -> dict[str, Start]:
    """By environment and what is seen, with the positions of lost games, and with the results of all that are known."""
    moved = dict(starts)
    for one in passed:
        key = f"{one.env} {one.seen}"
        if key in moved or one.lost:
            known = moved.get(key, Start(one.moves, 0.5))
            moved[key] = Start(known.moves, HELD_DECAY * known.held + (1 - HELD_DECAY) * (not one.lost))
    return dict(islice(moved.items(), max(0, len(moved) - MOST_STARTS), None))


def openings(starts: Mapping[str, Start], env: str, count: int, rng: Random) -> list[str]:
    """`count` draws of SELF after the moves to a position, by held·(1 - held); none where none is known."""
    own = [start for key, start in starts.items() if key.startswith(f"{env} ")]
    weights = [max(LEAST_START, start.held * (1 - start.held)) for start in own]
    return [AFTER + one.moves for one in rng.choices(own, cum_weights=[*accumulate(weights)], k=count)] if own else []


def admitted(pool: Sequence[int], step: int, size: int) -> tuple[int, ...]:
    """The pool's steps with another one. Above `size`, the one that is closest to the one before it leaves, so that
    the oldest and the newest stay, and those between lie apart."""
    steps = [*pool, step]
    if len(steps) > size:
        gaps = [later - earlier for earlier, later in pairwise(steps[:-1])]
        del steps[1 + gaps.index(min(gaps)) if gaps else 0]
    return tuple(steps)
