import pytest

from earl.matches import BOTH_SEATS, MatchResult, mean_over_seats, wilson


def result(seat: int = 0, exact: bool = False, episodes: int = 100, win: float = 1.0) -> MatchResult:
    return MatchResult("tictactoe", "random", seat, exact, episodes, win, 1 - win, 0.0, 0.0, 0.0)


def test_wilson_by_hand() -> None:
    # n = 4, 2 successes, z = 2: centre (0.5 + 4/8) / (1 + 4/4) = 0.5
    # spread 2 * sqrt(0.25/4 + 4/64) / 2 = sqrt(0.125) = 0.35355
    assert wilson(2, 4, z=2) == pytest.approx((0.5 - 0.35355, 0.5 + 0.35355), abs=1e-5)


def test_wilson_at_the_ends() -> None:
    # No losses in n games: the upper bound is z^2 / (n + z^2) = 3.8416 / 403.8416 = 0.009513
    assert wilson(0, 400) == pytest.approx((0.0, 0.009513), abs=1e-6)
    assert wilson(400, 400) == pytest.approx((1 - 0.009513, 1.0), abs=1e-6)
    assert wilson(0, 400)[0] == 0.0
    assert wilson(400, 400)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("n", [1, 7, 400, 10**6])
def test_wilson_holds_its_fraction(n: int) -> None:
    for successes in {0, 1, n // 2, n}:
        low, high = wilson(successes, n)
        assert 0 <= low <= successes / n <= high <= 1


def test_each_seat_weighs_the_same() -> None:
    # 9 leaves first, 900 leaves second: (0.9 + 0.5) / 2 = 0.7, not the 0.504 of the leaves taken together
    mean = mean_over_seats([result(0, True, 9, 0.9), result(1, True, 900, 0.5)])
    assert (mean.seat, mean.exact, mean.episodes) == (BOTH_SEATS, True, 909)
    assert mean.win == pytest.approx(0.7)
