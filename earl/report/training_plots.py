"""Plots of training metrics, stage times, and any other recorded metric. Pure functions."""

from collections.abc import Sequence
from typing import Any

from earl.report.data import RunData
from earl.report.figures import (
    CYCLE,
    Figure,
    bucket_note,
    color_of,
    label_of,
    layout,
    line,
    plain,
    series_figure,
    thin,
)
from earl.report.html import shown

Runs = Sequence[RunData]

STAGES = ("rollout", "track", "dispatch", "prepare", "update", "weights", "evaluate", "record")
"""The stages in the order of a step; others follow by name."""


def training_figures(runs: Runs) -> list[Figure]:
    return [
        series_figure(
            runs, "reward", "Reward", "Mean over the episodes played for training in a step. Higher is better.",
            "reward per episode", {"reward": "reward"},
        ),
        series_figure(
            runs, "illegal", "Illegal replies", "Share of the model's replies that broke the environment's rule.",
            "share of replies", {"illegal_replies": "illegal replies"}, percent=True,
        ),
        series_figure(
            runs, "entropy", "Entropy",
            "How undecided the model is about its next token, in nats: 0 means it always says the same. "
            "A fall to 0 long before the end means it has stopped exploring.",
            "nats per token", {"entropy": "reinforcement learning", "warm_start/entropy": "warm start"},
        ),
        series_figure(
            runs, "grad-norm", "Gradient norm",
            "Length of the gradient before clipping. Sudden peaks are a sign of unstable training.",
            "norm", {"grad_norm": "reinforcement learning", "warm_start/grad_norm": "warm start"},
        ),
        series_figure(
            runs, "loss", "Loss of reinforcement learning",
            "What the update minimises. It hovers around 0 by its nature and says little about strength.",
            "loss", {"loss": "loss"},
        ),
        series_figure(
            runs, "imitation-loss", "Loss of the warm start",
            "How badly the model predicts its teacher's moves, in nats per token. Lower is better.",
            "nats per token", {"warm_start/loss": "loss"},
        ),
        *importance_figures(runs),
        *dispatch_figures(runs),
    ]  # fmt: skip


def importance_figures(runs: Runs) -> list[Figure]:
    """Staleness and importance weights; nothing for runs that did not record them."""
    figures = [
        series_figure(
            runs, "staleness", "Staleness",
            "How many versions the weights that sampled the tokens were behind those that learned from them. "
            "The largest stays within placement.max_staleness.",
            "versions", {"staleness/mean": "mean", "staleness/max": "largest"},
        ),
        series_figure(
            runs, "importance-weight", "Importance weight",
            "Mean weight by which advantages were multiplied, capped, since other weights had sampled them. "
            "1 means that sampler and learner agree.",
            "weight", {"correction/weight": "weight"},
        ),
        series_figure(
            runs, "importance-capped", "Capped weights",
            "Share of the tokens whose importance weight was above algorithm.correction_cap.",
            "share of tokens", {"correction/capped": "capped"}, percent=True,
        ),
    ]  # fmt: skip
    return [figure for figure in figures if figure.spec]


def dispatch_figures(runs: Runs) -> list[Figure]:
    """Bytes and ratios of dispatch and weight sync; nothing for runs that did not record them."""
    figures = [
        series_figure(
            runs, "dispatch-bytes", "Dispatched bytes",
            "What learner ranks lacked of a step's rows, sent straight from where these were played. "
            "Between hosts, a byte crosses once for all ranks of a host.",
            "bytes", {"dispatch/bytes": "in all", "dispatch/bytes_across": "between hosts"},
        ),
        series_figure(
            runs, "dispatch-ratio", "Dispatched bytes against the least",
            "Bytes between hosts, as a multiple of the fewest that any plan can do with. 1 is the least.",
            "ratio", {"dispatch/ratio": "ratio"},
        ),
        series_figure(
            runs, "dispatch-way", "Way of dispatched rows",
            "1: from process to process, in one group that lasts. 0: through Ray's object store. "
            "The run's events say what each is expected to take.",
            "from process to process", {"dispatch/peers": "directly"},
        ),
        series_figure(
            runs, "weights-bytes", "Bytes of weights",
            "What samplers loaded of the learner's weights after a step. Between hosts, a byte crosses once for all "
            "samplers of a host. The time is that of the stage weights.",
            "bytes", {"weights/bytes": "in all", "weights/bytes_across": "between hosts"},
        ),
        series_figure(
            runs, "weights-ratio", "Bytes of weights against the least",
            "Bytes between hosts, as a multiple of the fewest that any plan can do with. 1 is the least.",
            "ratio", {"weights/ratio": "ratio"},
        ),
    ]  # fmt: skip
    return [figure for figure in figures if figure.spec]


def stages(data: RunData) -> list[str]:
    known = [stage for stage in STAGES if stage in data.numbers.timings]
    return known + sorted(set(data.numbers.timings) - set(known))


def time_figure(runs: Runs) -> Figure:
    """Seconds by stage, stacked; for several runs the total of each step."""
    title, told = "Time of each step", "Seconds that a step took, by stage, one on top of the other."
    timings = [points for run in runs for points in run.numbers.timings.values()]
    if not any(timings):
        return Figure("time", title, told, None)
    if len(runs) > 1:
        told, traces = "Seconds that a step took in all.", _whole_times(runs)
    else:
        traces = _stage_times(runs[0])
    return Figure("time", title, told + bucket_note(timings), {"data": traces, "layout": layout(runs, "seconds")})


def _steps(data: RunData) -> list[int]:
    return sorted({step for points in data.numbers.timings.values() for step, _ in points})


def _stage_times(data: RunData) -> list[dict[str, Any]]:
    traces = []
    for number, stage in enumerate(stages(data)):
        had = dict(data.numbers.timings[stage])
        points = thin([(step, had.get(step, 0.0)) for step in _steps(data)])
        color = CYCLE[number % len(CYCLE)]
        stacked = {"stackgroup": "time", "fillcolor": color, "mode": "lines", "hovertemplate": "%{y:.3f} s"}
        traces.append(line(plain(stage), points, color, **stacked) | {"line": {"width": 0, "color": color}})
    return traces


def _whole_times(runs: Runs) -> list[dict[str, Any]]:
    traces = []
    for run, data in enumerate(runs):
        totals = dict.fromkeys(_steps(data), 0.0)
        for points in data.numbers.timings.values():
            for step, seconds in points:
                totals[step] += seconds
        color = color_of(run, 0, len(runs))
        traces.append(line(label_of(runs, run), thin(list(totals.items())), color, hovertemplate="%{y:.3f} s"))
    return traces


DRAWN = ("reward", "illegal_replies", "entropy", "grad_norm", "loss")
ELSEWHERE = (
    *("warm_start/", "context/", "stop/", "tokens/", "truncation/", "memory/", "forecast/"),
    *("staleness/", "correction/", "dispatch/", "weights/"),
)


def other_figures(runs: Runs) -> list[Figure]:
    names = sorted({name for run in runs for name in run.numbers.metrics})
    rest = [name for name in names if name not in DRAWN and not name.startswith(ELSEWHERE)][:40]
    return [
        series_figure(runs, f"metric-{number}", shown(name, 60), "", "", {name: name})
        for number, name in enumerate(rest)
    ]
