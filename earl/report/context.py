"""Plots of how contexts grow: bands, who wrote them, truncation, memory. Pure functions."""

from collections.abc import Sequence

from earl.report.bands import LEVELS, band_figure
from earl.report.data import RunData
from earl.report.figures import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    Figure,
    bucket_note,
    faint,
    layout,
    line,
    plain,
    series_figure,
    thin,
)

Runs = Sequence[RunData]

AUTHORS = {"template": GREY, "environment": AMBER, "tool": GREEN, "thinking": PURPLE, "action": BLUE}


def context_figures(runs: Runs) -> list[Figure]:
    """Context by step as bands, who wrote it, what was cut off, and the memory that it implies."""
    several = len(runs) > 1
    authors = [_author_figure(runs, run) for run in range(len(runs))]
    return [
        *(band_figure(runs, level) for level in LEVELS if level != "window" or _has(runs, "context/window/p50")),
        *([figure for figure in authors if figure.spec] if several else authors),
        _truncation_figure(runs),
        series_figure(
            runs, "memory", "Memory that the contexts imply",
            "Computed from the lengths and the model's shape: keys and values of a step's longest contexts while "
            "episodes are played, activations while the weights are updated.",
            "bytes", {"memory/kv_bytes": "keys and values", "memory/activation_bytes": "activations"}, suffix="B",
        ),
    ]  # fmt: skip


def _has(runs: Runs, metric: str) -> bool:
    return any(run.numbers.metrics.get(metric) for run in runs)


def _author_figure(runs: Runs, run: int) -> Figure:
    """Mean tokens of an episode by author, stacked."""
    data, suffix = runs[run], f" ({runs[run].name})" if len(runs) > 1 else ""
    name, title = f"authors-{run}", f"Who wrote the context{plain(suffix)}"
    told = "Mean tokens of an episode by author, one on top of the other: the chat's template, the environment, \
tools, and the model while it thinks and acts."
    episodes = dict(data.numbers.metrics.get("episodes", []))
    traces = []
    for author, color in AUTHORS.items():
        points = [(s, v / episodes[s]) for s, v in data.numbers.metrics.get(f"tokens/{author}", []) if episodes.get(s)]
        if not any(value for _, value in points):
            continue
        stacked = {"stackgroup": "authors", "fillcolor": faint(color, 0.75), "mode": "lines"}
        trace = line(author, thin(points), color, hovertemplate="%{y:,.1f}", **stacked)
        traces.append(trace | {"line": {"width": 0.5, "color": color}})
    if not traces:
        return Figure(name, title, told, None)
    told += bucket_note(data.numbers.metrics.values())
    return Figure(name, title, told, {"data": traces, "layout": layout([data], "tokens per episode")})


def _truncation_figure(runs: Runs) -> Figure:
    """By cause; a run that did not record causes shows what else than the environment's own end stopped episodes."""
    causes = {
        "truncation/prompt": "no room for the next prompt",
        "truncation/reply": "reply met the context limit",
        "truncation/turn": "reply longer than a turn may be",
    }
    names = sorted({name for run in runs for name in run.numbers.metrics if name.startswith("stop/")})
    stops = {name: name.removeprefix("stop/").replace("_", " ") for name in names if name != "stop/finished"}
    covered = ("stop/context_limit", "stop/truncated_turn")
    if _has(runs, "truncation/reply"):
        stops = causes | {name: label for name, label in stops.items() if name not in covered}
    happened = {name: label for name, label in stops.items() if _happened(runs, name)}
    return series_figure(
        runs, "stops", "Episodes that did not reach their end",
        "Share of a step's episodes that something else than the environment's own end stopped. What a limit cuts off "
        "is a broken game to learn from.",
        "share of episodes", happened or stops, percent=True,
    )  # fmt: skip


def _happened(runs: Runs, name: str) -> bool:
    return any(value for run in runs for _, value in run.numbers.metrics.get(name, []))
