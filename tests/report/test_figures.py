"""Figures are data: everything about them can be checked without drawing."""

import json
from copy import copy
from dataclasses import replace
from typing import Any

from earl.reports import context_plots, figures
from earl.reports.data import ReportedRun
from earl.reports.figures import MAX_POINTS, downsample, plain
from earl.reports.results import strength_figures


def spec(listed: list[figures.Figure], name: str) -> dict[str, Any]:
    found = next(figure.spec for figure in listed if figure.name == name)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def traces(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in found["data"] if not trace.get("meta")}


def altered(data: ReportedRun, **parts: object) -> ReportedRun:
    other = copy(data)
    vars(other).update(parts)
    return other


def without(data: ReportedRun, *names: str) -> ReportedRun:
    """The run as an earl would have left it that did not record metrics whose names begin so."""
    kept = {name: points for name, points in data.numbers.metrics.items() if not name.startswith(names)}
    return altered(data, numbers=replace(data.numbers, metrics=kept))


def with_limit(data: ReportedRun, limit: int, history: str = "full") -> ReportedRun:
    assert data.config
    agent = data.config.agent.model_copy(update={"history": history})
    metrics = {**data.numbers.metrics, "context/limit": [(11, float(limit)), (60, float(limit))]}
    config, numbers = data.config.model_copy(update={"agent": agent}), replace(data.numbers, metrics=metrics)
    return altered(data, config=config, numbers=numbers)


def test_one_plot_per_opponent_and_seat_with_all_measures(runs: Any) -> None:
    listed = strength_figures([ReportedRun(runs.run())])
    seats = ("moves first", "moves second")
    assert [figure.title for figure in listed] == [
        f"Against {name}, {s}" for name in ("random", "perfect") for s in seats
    ]
    drawn = spec(listed, "strength-0")
    assert list(traces(drawn)) == ["wins", "draws", "losses"]
    # evaluated at 0, at the end of the warm start, then every 20 steps; the final match is not part of the curve
    assert traces(drawn)["wins"]["x"] == [0, 10, 20, 40, 60]
    assert [shape["x1"] for shape in drawn["layout"]["shapes"]] == [10]


def test_only_sampled_matches_have_intervals(runs: Any) -> None:
    sampled = spec(strength_figures([ReportedRun(runs.run(name="a"))]), "strength-0")
    exact = spec(strength_figures([ReportedRun(runs.run(name="b", exact=True))]), "strength-0")
    assert len(sampled["data"]) == 2 * len(exact["data"]) == 6, "a shade for each line"
    assert not any("error_y" in trace for trace in exact["data"])
    bars = traces(sampled)["losses"]["error_y"]
    # 0.3 % of 400 games at step 60: Wilson gives 0.06 % to 1.49 %
    assert round(bars["array"][-1], 4) == 0.0119
    assert round(bars["arrayminus"][-1], 4) == 0.0024


def test_context_has_bands_and_the_limit_as_a_staircase(runs: Any) -> None:
    window = spec(context_plots.context_figures([ReportedRun(runs.run())]), "context-window")
    drawn = traces(window)
    assert list(drawn)[:5] == ["median", "p95", "p99", "longest", "limit"]
    assert [drawn[name].get("fill") for name in list(drawn)[:4]] == [None, "tonexty", "tonexty", "tonexty"]
    # recorded from step 11 on: 120, from step 30 on 150
    assert list(zip(drawn["limit"]["x"], drawn["limit"]["y"], strict=True)) == [(11, 120), (30, 150), (60, 150)]
    assert drawn["limit"]["line"]["shape"] == "hv"
    turn = spec(context_plots.context_figures([ReportedRun(runs.run(name="b"))]), "context-turn")
    assert "limit" not in traces(turn)


def test_a_forgetful_agent_is_limited_by_what_a_reply_sees(runs: Any) -> None:
    data = with_limit(ReportedRun(runs.run()), 30, history="board_only")
    listed = context_plots.context_figures([data])
    assert ["limit" in traces(spec(listed, f"context-{level}")) for level in ("window", "episode", "turn")] == [
        True,
        False,
        False,
    ]


def test_a_distant_limit_is_told_but_does_not_flatten_the_plot(runs: Any) -> None:
    data = with_limit(ReportedRun(runs.run()), 32768)
    found = spec(context_plots.context_figures([data]), "context-window")
    assert "limit" not in traces(found)
    assert any("above this plot" in note["text"] for note in found["layout"]["annotations"])


def test_how_forecasts_moved(runs: Any) -> None:
    figure = context_plots.forecast_figure([ReportedRun(runs.run())])
    drawn = traces(spec([figure], "forecast"))
    assert {name for name in drawn if "," not in name} == {"p50", "p95"}
    assert set(drawn["p95"]["y"]) == {90.0}
    assert set(drawn["p50, late"]["y"]) == {178.5}, "beyond the horizon: 1.05 times 170, the latest within it"
    none = context_plots.forecast_figure([without(ReportedRun(runs.run(name="b")), "forecast/p50", "forecast/p95")])
    assert none.spec is None and "within the horizon" in none.missing


def test_authors_are_stacked_per_episode(runs: Any) -> None:
    found = traces(spec(context_plots.context_figures([ReportedRun(runs.run())]), "authors-0"))
    # 384 * 10 * author over 384 episodes; the template's 0 is not drawn
    assert {name: set(trace["y"]) for name, trace in found.items()} == {
        "environment": {10.0}, "tool": {20.0}, "thinking": {30.0}, "action": {40.0},
    }  # fmt: skip


def test_the_heat_map_has_a_choice_of_authors(runs: Any) -> None:
    figure = context_plots.heat_figure(ReportedRun(runs.run()))
    assert figure.choices == ("all authors", "environment", "action", "episodes that had the turn")
    everyone, _, action, episodes = spec([figure], "heat-0")["data"]
    assert everyone["y"] == [1, 2] and everyone["x"] == list(range(11, 61))
    assert everyone["z"][1][-1] == 12 + 60 and action["z"][0][0] == 11
    assert episodes["z"][1][0] == 192
    assert [trace["visible"] for trace in figure.spec["data"]] == [True, False, False, False]


def test_a_long_run_has_several_steps_in_a_column(runs: Any) -> None:
    data = ReportedRun(runs.run())
    contexts = [replace(row, step=row.step + 50 * lap) for lap in range(4) for row in data.contexts]
    long = altered(data, contexts=contexts)
    figure = context_plots.heat_figure(long)
    # 200 steps in columns of 2; the first column holds the steps 11 and 12: (11 + 12) / 2 tokens of the model
    assert spec([figure], "heat-0")["data"][2]["z"][0][0] == 11.5
    assert spec([figure], "heat-0")["data"][3]["z"][0][0] == 384, "episodes of one step"
    assert "2 neighbouring steps" in figure.explanation


def test_truncation_is_shown_by_cause(runs: Any) -> None:
    data = ReportedRun(runs.run())
    drawn = traces(spec(context_plots.context_figures([data]), "stops"))
    assert list(drawn) == [
        "no room for the next prompt",
        "reply met the context limit",
        "reply longer than a turn may be",
    ]


def test_several_runs_share_every_plot(runs: Any) -> None:
    both = [ReportedRun(runs.run(name="a")), ReportedRun(runs.run(name="b", until=45, final=False))]
    window = traces(spec(context_plots.context_figures(both), "context-window"))
    assert list(window) == ["a: median", "a: p95", "b: median", "b: p95", "a: limit", "b: limit"]
    reward = traces(spec(figures.training_figures(both), "reward"))
    assert {name: trace["x"][-1] for name, trace in reward.items()} == {"a": 60, "b": 45}
    assert reward["a"]["line"]["color"] != reward["b"]["line"]["color"]
    assert list(traces(spec([figures.time_figure(both)], "time"))) == ["a", "b"]


def test_how_old_what_was_learned_from_was_is_shown_where_it_was_recorded(runs: Any) -> None:
    data = ReportedRun(runs.run())
    names = {figure.name for figure in figures.training_figures([data])}
    assert not {"staleness", "importance-weight", "importance-capped"} & names
    recorded = {"staleness/mean": [(11, 0.5)], "staleness/max": [(11, 2.0)], "correction/capped": [(11, 0.1)]}
    numbers = replace(data.numbers, metrics={**data.numbers.metrics, **recorded})
    told = altered(data, numbers=numbers)
    drawn = figures.training_figures([told])
    assert list(traces(spec(drawn, "staleness"))) == ["mean", "largest"]
    assert spec(drawn, "importance-capped")["data"]
    assert not {figure.title for figure in figures.other_figures([told])} & {*recorded}


def test_what_was_dispatched_is_shown_where_it_was_recorded(runs: Any) -> None:
    data = ReportedRun(runs.run())
    names = {figure.name for figure in figures.training_figures([data])}
    assert not {"dispatch-bytes", "dispatch-ratio"} & names
    recorded = {"dispatch/bytes": [(11, 4096.0)], "dispatch/bytes_across": [(11, 512.0)], "dispatch/ratio": [(11, 1.0)]}
    numbers = replace(data.numbers, metrics={**data.numbers.metrics, **recorded})
    drawn = figures.training_figures([altered(data, numbers=numbers)])
    assert list(traces(spec(drawn, "dispatch-bytes"))) == ["in all", "between hosts"]
    assert spec(drawn, "dispatch-ratio")["data"]


def test_time_is_stacked_over_every_step(runs: Any) -> None:
    drawn = spec([figures.time_figure([ReportedRun(runs.run())])], "time")
    assert [trace["name"] for trace in drawn["data"]] == ["rollout", "update", "weights", "record"]
    assert {trace["stackgroup"] for trace in drawn["data"]} == {"all"}
    assert {len(trace["y"]) for trace in drawn["data"]} == {61}


def test_gaps_where_a_number_is_none(runs: Any) -> None:
    listed = figures.other_figures([ReportedRun(runs.run())])
    name = next(figure.name for figure in listed if figure.title == "kl_to_sampler")
    assert set(spec(listed, name)["data"][0]["y"]) == {None}


def test_without_numbers_there_are_no_plots(runs: Any) -> None:
    data = ReportedRun(runs.empty())
    listed = [
        *figures.training_figures([data]),
        *context_plots.context_figures([data]),
        figures.time_figure([data]),
    ]
    assert {figure.spec for figure in listed} == {None}
    assert strength_figures([data]) == [] == figures.other_figures([data])


def test_long_series_are_thinned() -> None:
    points = [(step, float(step % 2)) for step in range(1, 2 * MAX_POINTS + 1)]
    # pairs of 1 and 0: their mean is 0.5, their maximum 1, at the step of the second
    assert downsample(points)[:2] == [(2, 0.5), (4, 0.5)]
    assert len(downsample(points)) == MAX_POINTS
    assert {value for _, value in downsample(points, max)} == {1.0}
    assert downsample(points[:5]) == points[:5]
    assert downsample([]) == []


def test_names_cannot_be_markup_in_a_plot() -> None:
    assert plain('<a href="javascript:x">&') == '&lt;a href="javascript:x"&gt;&amp;'
