"""Match results as tables and lines."""

from dataclasses import replace

from earl.cli.match_tables import in_short
from earl.matches import MatchResult, by_opponent

WON = MatchResult("tictactoe", "random", 0, False, 400, 1.0, 0.0, 0.0, 0.0, 0.0)
LOST = replace(WON, seat=1, win=0.0, loss=1.0)


def test_enumerated_and_sampled_results_of_an_opponent_are_told_apart() -> None:
    solved = replace(WON, exact=True, episodes=31)
    assert list(by_opponent([LOST, solved, WON]).values()) == [[WON, LOST], [solved]]
    # seats weigh the same: half of both is won; of the enumerated one, all
    assert in_short([LOST, solved, WON]) == "random 50/0/50, random 100/0/0"
