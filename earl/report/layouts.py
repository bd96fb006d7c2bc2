"""Which layout each stage ran in, over the steps, and what made it change. Pure functions."""

from collections.abc import Sequence

from earl.report.data import RunData
from earl.report.figures import AGAIN, GREY, Figure, color_of, label_of, layout, line, plain, thin
from earl.runs.tables import RecordedDecision

STAGES = ("rollout", "experience", "update")
MAX_CHANGES = 100


def layout_figures(runs: Sequence[RunData]) -> list[Figure]:
    """A timeline for each run and stage that decided."""
    return [
        _figure(runs, number, stage)
        for number, run in enumerate(runs)
        for stage in STAGES
        if any(decision.stage == stage for decision in run.decisions)
    ]


def changes(data: RunData) -> list[RecordedDecision]:
    """The decisions that changed something, the latest ones."""
    return [one for one in data.decisions if one.choice != one.before][-MAX_CHANGES:]


def _figure(runs: Sequence[RunData], number: int, stage: str) -> Figure:
    """Choices as steps of a line, over the mean context that each step had."""
    data = runs[number]
    made = {one.step: one.choice for one in data.decisions if one.stage == stage}  # of a step begun again, the last
    title = f"Layout of {label_of(runs, number, stage)}"
    told = (
        f"What {stage} ran in at each step, and the mean context. Before each step that layout is chosen which is "
        "expected to be the fastest of those whose memory does, if that saves more than the switch costs."
    )
    names = sorted(set(made.values()))
    color = color_of(number, 0, len(runs))
    shown = {"line": {"shape": "hv", "width": 2, "color": color}, "hovertemplate": "%{text}", "meta": AGAIN}
    chosen = line("layout", [(step, float(names.index(made[step]))) for step in sorted(made)], color, **shown)
    chosen["text"] = [plain(made[step]) for step in sorted(made)]
    contexts = thin(data.numbers.metrics.get("context/window/mean", []))
    traces = [chosen, line("mean context", contexts, GREY, yaxis="y2", hovertemplate="%{y:.4g}")]
    axis = {"title": {"text": "tokens"}, "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False}
    ticks = {"tickmode": "array", "tickvals": [*range(len(names))], "ticktext": [plain(name) for name in names]}
    placed = layout([data], "", yaxis={**ticks, "automargin": True}, yaxis2={**axis, "automargin": True})
    return Figure(f"layout-{number}-{stage}", title, told, {"data": traces, "layout": placed})
