"""The plots of a plan show the planner's numbers."""

from itertools import pairwise

from earl.planner.plan import plan
from earl.reports.planning import map_figure, memory_figure, speed_figure, step_figure
from tests.planner.asked import asked

FOUND = plan(asked(contexts="1024,32768", responses="8,128"))


def test_the_map_holds_what_the_larger_split_gains() -> None:
    (trace,) = map_figure(FOUND, 4, 8, "").spec["data"]
    gains = {(e.responses, e.context): e.percent for e in FOUND.map if (e.tp_from, e.tp_to) == (4, 8)}
    assert (trace["x"], trace["y"]) == (["1,024", "32,768"], ["8", "128"])
    assert trace["z"] == [[gains[8, 1024], gains[8, 32_768]], [gains[128, 1024], gains[128, 32_768]]]
    assert trace["zmax"] == -trace["zmin"] == max(map(abs, gains.values()))


def test_a_cell_that_does_not_fit_is_a_gap() -> None:
    (trace,) = map_figure(FOUND, 2, 4, "").spec["data"]
    assert trace["z"] == [[None, None], [None, None]]
    assert trace["text"] == [["OOM", "OOM"], ["OOM", "OOM"]]


def test_each_load_has_its_lines_with_intervals() -> None:
    figure = speed_figure(FOUND, "")
    assert figure.choices == ("8 responses", "128 responses")
    cells = {(c.responses, c.tp, c.context): c.throughput for c in FOUND.cells if c.stage == "rollout"}
    assert [(t["meta"]["choice"], t["name"]) for t in figure.spec["data"]] == [
        (number, f"TP {tp}") for number in (0, 1) for tp in (4, 8)
    ]
    for trace in figure.spec["data"]:
        load, tp = (8, 128)[trace["meta"]["choice"]], int(trace["name"][3:])
        for place, context in enumerate(trace["x"]):
            fast = cells[load, tp, context]
            value, above = trace["y"][place], trace["error_y"]["array"][place]
            assert abs(value + above - fast.high) < 1e-4 * fast.high


def test_a_split_has_one_colour_everywhere() -> None:
    figures = [speed_figure(FOUND, ""), *(memory_figure(FOUND, stage, "") for stage in ("rollout", "update"))]
    colors = {(trace["name"], trace["line"].get("color")) for figure in figures for trace in figure.spec["data"]}
    named = sorted(name for name, color in colors if color)
    assert all(before != after for before, after in pairwise(named))


def test_a_step_is_as_high_as_it_is_long() -> None:
    traces = step_figure(FOUND, "").spec["data"]
    for place, step in enumerate(FOUND.steps):
        assert abs(sum(trace["y"][place] for trace in traces) - step.seconds.value) < 1e-4 * step.seconds.value
