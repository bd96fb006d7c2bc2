"""Figures are data: everything about them can be checked without drawing."""

import json
from dataclasses import replace
from typing import Any

from earl.report import course, figures
from earl.report.data import RunData, gather
from earl.report.figures import MAX_POINTS, plain, thin
from earl.report.strength import enlarged_range, strength_figures


def spec(listed: list[figures.Figure], name: str) -> dict[str, Any]:
    found = next(figure.spec for figure in listed if figure.name == name)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def traces(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in found["data"] if trace.get("meta") != "enlarged"}


def with_limit(data: RunData, limit: int, history: str = "full") -> RunData:
    assert data.config
    update = {
        "context": data.config.context.model_copy(update={"limit": limit}),
        "agent": data.config.agent.model_copy(update={"history": history}),
    }
    return replace(data, config=data.config.model_copy(update=update))


def test_one_plot_per_opponent_with_all_seats_and_enlarged_losses(runs: Any) -> None:
    listed = strength_figures(gather(runs.run()))
    assert [figure.title for figure in listed] == ["Against random", "Against perfect"]
    drawn = spec(listed, "strength-0")
    assert list(traces(drawn)) == [
        f"{what}, {seat}" for seat in ("first", "second") for what in ("win", "draw", "loss")
    ]
    # evaluated at 0, at the end of the warm start, then every 20 steps; the final match is not part of the curve
    assert traces(drawn)["win, first"]["x"] == [0, 10, 20, 40, 60]
    enlarged = [trace for trace in drawn["data"] if trace.get("meta") == "enlarged"]
    assert [trace["yaxis"] for trace in enlarged] == ["y2", "y2"]
    # losses 0.8, 0.65, 0.5, 0.2, 0.003: the later half is 0.5, 0.2, 0.003; 0.5 * 1.25 = 0.625
    assert drawn["layout"]["yaxis2"]["range"][1] == 0.625
    assert [shape["x1"] for shape in drawn["layout"]["shapes"]] == [10]


def test_rare_losses_fill_the_enlarged_panel() -> None:
    assert enlarged_range([1.0, 0.2, 0.004, 0.002]) == 0.01
    assert enlarged_range([1.0, 1.0]) == 0.0, "there is nothing to enlarge"
    assert enlarged_range([0.0]) == 0.01
    assert enlarged_range([float("nan")]) == 0.0


def test_only_sampled_matches_have_bars(runs: Any) -> None:
    sampled = spec(strength_figures(gather(runs.run(name="a"))), "strength-0")
    exact = spec(strength_figures(gather(runs.run(name="b", exact=True))), "strength-0")
    assert all("error_y" in trace for trace in sampled["data"])
    assert not any("error_y" in trace for trace in exact["data"])
    bars = traces(sampled)["loss, first"]["error_y"]
    # 0.3 % of 400 games at step 60: Wilson gives 0.06 % to 1.49 %
    assert round(bars["array"][-1], 4) == 0.0119
    assert round(bars["arrayminus"][-1], 4) == 0.0024


def test_context_has_bands_and_the_limit_where_it_applies(runs: Any) -> None:
    data = gather(runs.run())
    episode = spec(course.context_figures(data), "context-episode")
    assert [trace["name"] for trace in episode["data"]] == ["median", "p95", "longest"]
    assert [trace.get("fill") for trace in episode["data"]] == [None, "tonexty", "tonexty"]
    lines = [shape for shape in episode["layout"]["shapes"] if shape["type"] == "line"]
    assert [(rule["y0"], rule["y1"]) for rule in lines] == [(120, 120)]
    assert episode["layout"]["yaxis"]["range"][1] > 120
    turn = spec(course.context_figures(data), "context-turn")
    assert not [shape for shape in turn["layout"]["shapes"] if shape["type"] == "line"]


def test_a_forgetful_agent_is_limited_by_turn(runs: Any) -> None:
    data = with_limit(gather(runs.run()), 30, history="board_only")
    turn = spec(course.context_figures(data), "context-turn")
    assert [shape["y0"] for shape in turn["layout"]["shapes"] if shape["type"] == "line"] == [30]


def test_a_distant_limit_is_told_but_does_not_flatten_the_plot(runs: Any) -> None:
    data = with_limit(gather(runs.run()), 32768)
    layout = spec(course.context_figures(data), "context-episode")["layout"]
    assert layout["yaxis"]["range"][1] < 200
    assert any("above this plot" in note["text"] for note in layout["annotations"])


def test_time_is_stacked_over_every_step(runs: Any) -> None:
    drawn = spec([course.time_figure(gather(runs.run()))], "time")
    assert [trace["name"] for trace in drawn["data"]] == ["rollout", "update", "weights", "record"]
    assert {trace["stackgroup"] for trace in drawn["data"]} == {"time"}
    assert {len(trace["y"]) for trace in drawn["data"]} == {61}


def test_gaps_where_a_number_is_none(runs: Any) -> None:
    listed = course.other_figures(gather(runs.run()))
    name = next(figure.name for figure in listed if figure.title == "kl_to_sampler")
    assert set(spec(listed, name)["data"][0]["y"]) == {None}


def test_without_numbers_there_are_no_plots(runs: Any) -> None:
    data = gather(runs.empty())
    listed = [*course.training_figures(data), *course.context_figures(data), course.time_figure(data)]
    assert {figure.spec for figure in listed} == {None}
    assert strength_figures(data) == [] == course.other_figures(data)


def test_long_series_are_thinned() -> None:
    points = [(step, float(step % 2)) for step in range(1, 2 * MAX_POINTS + 1)]
    # pairs of 1 and 0: their mean is 0.5, their maximum 1, at the step of the second
    assert thin(points)[:2] == [(2, 0.5), (4, 0.5)]
    assert len(thin(points)) == MAX_POINTS
    assert {value for _, value in thin(points, max)} == {1.0}
    assert thin(points[:5]) == points[:5]
    assert thin([]) == []


def test_names_cannot_be_markup_in_a_plot() -> None:
    assert plain('<a href="javascript:x">&') == '&lt;a href="javascript:x"&gt;&amp;'
