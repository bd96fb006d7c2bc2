"""Ratings against known strengths, and games of a league against what its players do."""

from itertools import combinations

import numpy as np
import pytest

from earl.errors import EarlError
from earl.league import ELO, GameResult, League, ratings


def simulated(strengths: np.ndarray, games: int, rng: np.random.Generator, draws: float) -> list[GameResult]:
    """So many games of every pair from both seats, of which a share is drawn."""
    found = []
    for first, second in combinations(range(len(strengths)), 2):
        for a, b in ((first, second), (second, first)):
            won = rng.random(games) < 1 / (1 + np.exp(strengths[b] - strengths[a]))
            points = np.where(rng.random(games) < draws, 0.5, won)
            found += [GameResult((str(a), str(b)), float(one), False) for one in points]
    return found


def covered(draws: float) -> float:
    """How many intervals of 300 leagues hold the strength that their games were drawn by."""
    rng, players, inside = np.random.default_rng(5), [str(number) for number in range(6)], []
    for _ in range(300):
        strengths = rng.normal(0, 1, 6)
        true = ELO * (strengths - strengths.mean())
        for one in ratings(players, simulated(strengths, 20, rng, draws)):
            inside.append(one.low <= true[int(one.name)] <= one.high)
    return float(np.mean(inside))


def test_95_of_100_intervals_hold_the_known_strength() -> None:
    # 1,800 intervals: the standard error of 0.95 is 0.005, 0.011 if the six of a league were one.
    assert 0.93 <= covered(draws=0.0) <= 0.97


def test_a_rating_is_the_log_of_the_odds() -> None:
    # One pair, 30 of 40 points: log(3) = 1.0986 logits apart, 190.8 points; the prior of 5 logits takes little.
    results = [GameResult(("a", "b"), float(number < 30), False) for number in range(40)]
    strong, weak = ratings(["b", "a"], results)
    assert (strong.name, strong.points, strong.games, weak.points) == ("a", 30.0, 40, 10.0)
    assert strong.elo - weak.elo == pytest.approx(190.8, rel=0.02)
    assert strong.elo + weak.elo == pytest.approx(0)
    # Fisher: 40 × 3/4 × 1/4 = 7.5 of the difference, each rating is half of it.
    assert strong.high - strong.low == pytest.approx(2 * 1.96 * ELO / 2 / 7.5**0.5, rel=0.02)


def test_who_wins_every_game_has_a_finite_rating_of_a_wide_interval() -> None:
    strong, _ = ratings(["a", "b"], [GameResult(("a", "b"), 1.0, False)] * 10)
    assert np.isfinite(strong.elo)
    assert strong.high - strong.low > 500


def test_every_pair_meets_from_both_seats_in_the_same_openings() -> None:
    players = ["perfect", "heuristic", "random"]
    results = League("tictactoe", {}, {}, None).play(players, openings=30, seed=1)
    assert results == League("tictactoe", {}, {}, None).play(players, openings=30, seed=1)
    seats = [result.players for result in results]
    assert {pair: seats.count(pair) for pair in seats} == {(a, b): 30 for a in players for b in players if a != b}
    rated = ratings(players, results)
    assert [one.name for one in rated] == players
    lost = [r.points == (r.players[0] == "random") for r in results if {*r.players} == {"perfect", "random"}]
    assert np.mean(lost) < 0.1  # only where the opening is lost already


def test_a_game_that_is_not_earl_s_has_no_league() -> None:
    with pytest.raises(EarlError, match="no board game"):
        League("arithmetic", {}, {}, None).play(["a", "b"], openings=1, seed=0)
