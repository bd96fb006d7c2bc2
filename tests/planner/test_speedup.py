"""The paper's speed-up map."""

from earl.planner.plan import speedups
from tests.planner.cells import cell


def test_equation_1() -> None:
    assert [entry.percent for entry in speedups([cell(1024, 4, 100.0), cell(1024, 8, 131.0)])] == [31.0]
    assert [entry.percent for entry in speedups([cell(1024, 4, 131.0), cell(1024, 8, 100.0)])] == [-23.7]  # -31 / 131


def test_every_split_against_the_next_larger_one() -> None:
    speeds = {(2, 1024): None, (4, 1024): 100.0, (8, 1024): 80.0, (2, 2048): None, (4, 2048): None, (8, 2048): 50.0}
    found = speedups(
        [cell(context, tp, speed) for (tp, context), speed in speeds.items()]
        + [cell(1024, 4, 10.0, stage="update", responses=None)]
    )
    assert [(s.tp_from, s.tp_to, s.context, s.percent, s.why) for s in found] == [
        (2, 4, 1024, None, "TP 2 does not fit"),
        (2, 4, 2048, None, "TP 2 does not fit and TP 4 does not fit"),
        (4, 8, 1024, -20.0, ""),
        (4, 8, 2048, None, "TP 4 does not fit"),
    ]
    assert {s.responses for s in found} == {32}
