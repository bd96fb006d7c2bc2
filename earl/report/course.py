"""Plots of how training went: signals, context lengths, time. Pure functions."""

from typing import Any

from earl.report.data import RunData
from earl.report.figures import (
    BLUE,
    CYCLE,
    ORANGE,
    Figure,
    bucket_note,
    layout,
    line,
    note,
    plain,
    series_figure,
    thin,
)
from earl.report.text import count, shown

STAGES = ("rollout", "prepare", "update", "weights", "evaluate", "record")
"""The stages of a step in the order in which they come; others follow by name."""


def training_figures(data: RunData) -> list[Figure]:
    """Reward, broken rules, entropy, losses, gradient norm."""
    return [
        series_figure(
            data, "reward", "Reward", "Mean over the episodes played for training in a step. Higher is better.",
            "reward per episode", {"reward": "reward"},
        ),
        series_figure(
            data, "illegal", "Illegal replies", "Share of the model's replies that broke the environment's rule.",
            "share of replies", {"illegal_replies": "illegal replies"}, percent=True,
        ),
        series_figure(
            data, "entropy", "Entropy",
            "How undecided the model is about its next token, in nats: 0 means it always says the same. "
            "A fall to 0 long before the end means it has stopped exploring.",
            "nats per token", {"entropy": "reinforcement learning", "warm_start/entropy": "warm start"},
        ),
        series_figure(
            data, "grad-norm", "Gradient norm",
            "Length of the gradient before clipping. Sudden peaks are a sign of unstable training.",
            "norm", {"grad_norm": "reinforcement learning", "warm_start/grad_norm": "warm start"},
        ),
        series_figure(
            data, "loss", "Loss of reinforcement learning",
            "What the update minimises. It hovers around 0 by its nature and says little about strength.",
            "loss", {"loss": "loss"},
        ),
        series_figure(
            data, "imitation-loss", "Loss of the warm start",
            "How badly the model predicts its teacher's moves, in nats per token. Lower is better.",
            "nats per token", {"warm_start/loss": "loss"},
        ),
    ]  # fmt: skip


def context_figures(data: RunData) -> list[Figure]:
    """Turn and episode contexts with their limit, and the ends that were not the game's own."""
    full = data.config is None or data.config.agent.history == "full"
    return [
        _context_figure(
            data, "turn", "Context of a turn",
            "Tokens of one round: what the environment said and what the model replied. "
            "Median: half are shorter. p95: 95 % are shorter.", limited=not full,
        ),
        _context_figure(
            data, "episode", "Context of an episode",
            "Tokens that an episode gathered over all its turns.", limited=full,
        ),
        series_figure(
            data, "stops", "Episodes that did not reach their end",
            "Share of a step's episodes that something else than the environment's own end stopped.",
            "share of episodes", _stops(data), percent=True,
        ),
    ]  # fmt: skip


def _stops(data: RunData) -> dict[str, str]:
    names = sorted(name for name in data.numbers.metrics if name.startswith("stop/") and name != "stop/finished")
    return {name: name.removeprefix("stop/").replace("_", " ") for name in names}


def _context_figure(data: RunData, level: str, title: str, explanation: str, limited: bool) -> Figure:
    """Median, 95th percentile and maximum as bands."""
    metrics = data.numbers.metrics
    names = {"p50": "median", "p95": "p95", "max": "longest"}
    fills = ("rgba(47,127,196,0.30)", "rgba(47,127,196,0.14)")
    bands: list[dict[str, Any]] = []
    for number, (quantile, label) in enumerate(names.items()):
        points = metrics.get(f"context/{level}/{quantile}", [])
        if points:
            fill = {"fill": "tonexty", "fillcolor": fills[number - 1]} if bands else {}
            kept = thin(points, max if quantile == "max" else None)
            more = {"width": 2.5 if quantile == "p50" else 1, "color": BLUE}
            bands.append(line(label, kept, BLUE, hovertemplate="%{y:,.0f}", mode="lines", **fill) | {"line": more})
    if not bands:
        return Figure(f"context-{level}", title, explanation, None)
    drawn = layout(data, "tokens")
    drawn["yaxis"]["rangemode"] = "tozero"
    if limited and data.config:
        _draw_limit(drawn, data.config.context.limit, max(y or 0 for band in bands for y in band["y"]))
        explanation += " The dashed line is the limit: an episode that reaches it is cut off."
    explanation += bucket_note(metrics.values())
    return Figure(f"context-{level}", title, explanation, {"data": bands, "layout": drawn})


def _draw_limit(drawn: dict[str, Any], limit: int, longest: float) -> None:
    """The limit as a line; far above the data it is only told, so that the data stay readable."""
    near = limit <= 5 * longest
    top = 1.12 * max(limit, longest) if near else 1.15 * longest
    drawn["yaxis"]["range"] = [0, top]
    told = f"context limit: {count(limit)} tokens" + ("" if near else " (above this plot)")
    place = {"y": limit, "yref": "y", "yanchor": "bottom"} if near else {"y": 1, "yref": "paper", "yanchor": "top"}
    drawn["annotations"].append(note(told, **{"xref": "paper", "x": 1, "xanchor": "right", **place}))
    if near:
        rule = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit}
        drawn["shapes"].append({**rule, "line": {"color": ORANGE, "width": 2, "dash": "dash"}})


def stages(data: RunData) -> list[str]:
    """The recorded stages in the order of a step."""
    known = [stage for stage in STAGES if stage in data.numbers.timings]
    return known + sorted(set(data.numbers.timings) - set(known))


def time_figure(data: RunData) -> Figure:
    """Seconds by stage, stacked; a stage that a step did not have counts 0."""
    title, told = "Time of each step", "Seconds that a step took, by stage, one on top of the other."
    timings = data.numbers.timings
    steps = sorted({step for points in timings.values() for step, _ in points})
    if not steps:
        return Figure("time", title, told, None)
    traces = []
    for number, stage in enumerate(stages(data)):
        had = dict(timings[stage])
        points = thin([(step, had.get(step, 0.0)) for step in steps])
        color = CYCLE[number % len(CYCLE)]
        stacked = {"stackgroup": "time", "fillcolor": color, "mode": "lines", "hovertemplate": "%{y:.3f} s"}
        traces.append(line(plain(stage), points, color, **stacked) | {"line": {"width": 0, "color": color}})
    return Figure(
        "time",
        title,
        told + bucket_note(timings.values()),
        {"data": traces, "layout": layout(data, "seconds")},
    )


def other_figures(data: RunData) -> list[Figure]:
    """Every other metric that was recorded, under its own name."""
    drawn = {"reward", "illegal_replies", "entropy", "grad_norm", "loss"}
    rest = [
        name
        for name in sorted(data.numbers.metrics)
        if name not in drawn and not name.startswith(("warm_start/", "context/", "stop/"))
    ][:40]
    return [
        series_figure(data, f"metric-{number}", shown(name, 60), "", "", {name: name})
        for number, name in enumerate(rest)
    ]
