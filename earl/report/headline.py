"""The facts at the top of the page, and the table of times. Pure functions."""

from dataclasses import dataclass
from statistics import fmean

from earl.report.data import RunData
from earl.report.html import count, moment, seconds, shown
from earl.report.training_plots import stages

MISSING = "not recorded yet"


def summary(data: RunData) -> list[tuple[str, str]]:
    return [
        ("Environment", data.config.env.name if data.config else MISSING),
        ("Model", _model(data)),
        ("State", _state(data)),
        ("Steps", _steps(data)),
        ("Played", _played(data)),
        ("Time in steps", _time(data)),
        ("Started", moment(data.started) if data.started else MISSING),
        ("Last change", moment(data.changed) if data.changed else MISSING),
        ("Signature", shown(data.signed, 300)),
    ]


def _model(data: RunData) -> str:
    if data.model is None:
        return MISSING
    size = f"{count(data.model.parameters)} parameters" if data.model.parameters else "size unknown"
    origin = data.config.model.path if data.config else None
    parts = [size, data.model.shape, f"from {origin}" if origin else ""]
    return ", ".join(shown(part, 120) for part in parts if part)


def _state(data: RunData) -> str:
    if data.finished:
        return "finished"
    step = data.numbers.last_step
    if step is None:
        return "no step recorded yet"
    if data.warm_steps and step <= data.warm_steps:
        return "not finished: in the warm start"
    if data.config and step >= data.config.total_steps:
        return "all steps done, final evaluation not recorded yet"
    return "not finished: in reinforcement learning"


def _steps(data: RunData) -> str:
    step = data.numbers.last_step
    done = count(step) if step is not None else "0"
    if data.config is None:
        return f"{done} done"
    warm, rest = data.config.warm_start.steps, data.config.run.steps
    parts = f" ({count(warm)} warm start + {count(rest)} reinforcement learning)" if warm else ""
    return f"{done} of {count(warm + rest)}{parts}"


def _played(data: RunData) -> str:
    totals = {name: sum(value for _, value in data.numbers.metrics.get(name, [])) for name in ("episodes", "tokens")}
    if not totals["episodes"]:
        return MISSING
    return f"{count(totals['episodes'])} training episodes, {count(totals['tokens'])} tokens"


def _time(data: RunData) -> str:
    spent = sum(value for points in data.numbers.timings.values() for _, value in points)
    return seconds(spent) if spent else MISSING


@dataclass(frozen=True, slots=True)
class StageShare:
    stage: str
    mean: float
    """Seconds per step, over the steps that had the stage."""
    times: int
    total: float
    share: float
    """Of all recorded time."""


def time_table(data: RunData) -> list[StageShare]:
    values = {stage: [value for _, value in data.numbers.timings[stage]] for stage in stages(data)}
    whole = sum(map(sum, values.values())) or 1.0
    return [StageShare(stage, fmean(v), len(v), sum(v), sum(v) / whole) for stage, v in values.items() if v]
