"""Match results: made by evaluation, kept by the run store, shown by the report."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

BOTH_SEATS = -1
"""Seat of a result that is the mean over seats."""
OUTCOMES = ("win", "draw", "loss")
MOST_LOST = 200
NOT_KEPT = ("faults", "lost")
"""Fields of a result that run.db does not have."""
FRACTIONS = (*OUTCOMES, "illegal", "truncated")
MEASURES = ("distinct_win", "distinct_draw", "distinct_loss", "forfeit", "turn_tokens", "optimal", "value_lost")
"""Fields of a result that runs of earlier versions lack, beside `distinct_games`."""


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Result of one player against one opponent from one seat. Fractions are of 1."""

    env: str
    opponent: str
    """Empty in tasks. In another environment of the run than its own: ENV, or ENV OPPONENT."""
    seat: int
    exact: bool
    """Every reply of the opponent was enumerated; the fractions are then probabilities, not samples."""
    episodes: int  # games played; leaves of the game tree when `exact`
    win: float
    draw: float
    loss: float
    illegal: float  # fraction of episodes with an invalid reply, whatever their outcome
    truncated: float  # fraction of episodes ended by a token limit
    faults: tuple[str, ...] = ()
    """Faults of the environment and invalid replies of a server, which end an episode; they count as losses."""
    lost: tuple[str, ...] = ()
    """The moves, with spaces between them, of the first MOST_LOST different games that were lost, where there is a
    board."""
    distinct_games: int = 0  # episodes that differ, in their moves or in what was asked; 0 where nobody counted
    distinct_win: float | None = None  # fractions of the distinct games: those that are alike count once
    distinct_draw: float | None = None
    distinct_loss: float | None = None
    forfeit: float | None = None  # fraction of episodes that a rule or limit ended without a result; they count as lost
    turn_tokens: float | None = None  # sampled tokens per reply
    optimal: float | None = None  # fraction of moves that keep the value of the position, by the game's solver
    value_lost: float | None = None  # per move: 1 from a win to a draw or from there to a loss

    def share(self, name: str) -> tuple[float, float, float]:
        """A fraction and its 95 % interval. Wins, draws and losses of samples are those of the distinct games, where
        these were counted; the interval of an exact one is the fraction itself."""
        value: float = getattr(self, name)
        if self.exact:
            return value, value, value
        counted = self.distinct_games and name in OUTCOMES
        value, games = (getattr(self, f"distinct_{name}"), self.distinct_games) if counted else (value, self.episodes)
        return value, *wilson(value * games, games)

    @property
    def measured(self) -> str:
        """From how much it was measured, such as "120 distinct of 1,000 games"."""
        if self.exact:
            return f"exact: {self.episodes:,} {'leaf' if self.episodes == 1 else 'leaves'}"
        alike = self.distinct_games not in (0, self.episodes)
        distinct = f"{self.distinct_games:,} distinct of " if alike else ""
        return f"{distinct}{self.episodes:,} {'games' if self.opponent else 'held-out tasks'}"


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a fraction (Wilson 1927): `z` = 1.96 covers 95 %. (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    fraction = successes / n
    centre = fraction + z * z / (2 * n)
    spread = z * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and 1 the bound is the fraction itself; rounding must not put it on the wrong side.
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return max(0.0, min(low, fraction)), min(1.0, max(high, fraction))


def by_opponent(results: Iterable[MatchResult]) -> dict[tuple[str, bool], list[MatchResult]]:
    """The results by opponent and whether its replies were enumerated, each list by seat."""
    groups: dict[tuple[str, bool], list[MatchResult]] = {}
    for result in results:
        groups.setdefault((result.opponent, result.exact), []).append(result)
    return {pairing: sorted(own, key=lambda result: result.seat) for pairing, own in groups.items()}


def mean_over_seats(results: Sequence[MatchResult]) -> MatchResult:
    """Mean over one result per seat; each seat weighs the same, however many leaves it has."""
    assert len({result.seat for result in results}) == len(results)
    means: dict[str, Any] = {}
    for name in (*FRACTIONS, *MEASURES):
        values = [getattr(result, name) for result in results]
        means[name] = None if None in values else math.fsum(values) / len(results)
    faults = tuple(fault for result in results for fault in result.faults)
    episodes, distinct = (sum(getattr(result, name) for result in results) for name in ("episodes", "distinct_games"))
    return replace(results[0], seat=BOTH_SEATS, episodes=episodes, distinct_games=distinct, faults=faults, **means)
