"""Choices among cells: the fastest that fits, and where it changes."""

from earl.planner.plan import Switch, choices, switches
from tests.planner.cells import cell


def test_the_fastest_that_fits_and_by_how_much() -> None:
    (found,) = choices([cell(1024, 2, None), cell(1024, 4, 131.0), cell(1024, 8, 100.0)])
    assert (found.tp, found.cell.choice.layout.dp, found.cell.throughput.value) == (4, 32, 131.0)
    assert round(found.ahead_percent, 6) == 31.0
    assert found.certain  # 131 - 13.1 > 100 + 10


def test_intervals_that_overlap_leave_the_choice_uncertain() -> None:
    (found,) = choices([cell(1024, 4, 110.0), cell(1024, 8, 100.0)])
    assert (found.tp, found.certain) == (4, False)  # 99 < 110


def test_equally_fast_ones_take_the_smaller_split() -> None:
    (found,) = choices([cell(1024, 8, 100.0), cell(1024, 4, 100.0)])
    assert found.tp == 4


def test_a_layout_alone_is_certain_and_ahead_of_none() -> None:
    (found,) = choices([cell(1024, 4, None), cell(1024, 8, 100.0)])
    assert (found.tp, found.ahead_percent, found.certain) == (8, None, True)


def test_where_none_fits_the_one_that_comes_nearest_says_why() -> None:
    (found,) = choices([cell(1024, 4, None), cell(1024, 8, None)])
    assert (found.tp, found.cell.throughput, found.cell.verdict) == (None, None, "TP 8 at 1024")
    told = found.as_object
    assert (told["tp"], told["dp"], told["verdict"]) == (None, None, "TP 8 at 1024")


def test_where_the_choice_changes() -> None:
    cells = [
        cell(context, tp, speed, responses=load)
        for load, ahead in ((32, 16_384), (128, 4096))  # from there TP 8 is the faster one
        for context in (1024, 4096, 16_384, 32_768)
        for tp, speed in ((4, 100.0), (8, 120.0 if context >= ahead else 80.0))
    ]
    runs = switches(choices(cells))
    assert runs == [
        Switch("rollout", 32, 4, 1024, 4096),
        Switch("rollout", 32, 8, 16_384, 32_768),
        Switch("rollout", 128, 4, 1024, 1024),
        Switch("rollout", 128, 8, 4096, 32_768),
    ]
