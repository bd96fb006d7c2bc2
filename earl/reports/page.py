"""Renders the page of one or several runs: its facts and tables, the template, and all plots by section."""

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
from markupsafe import Markup

from earl.formats import duration, percent
from earl.reports import figures, html, results
from earl.reports.context_plots import context_figures, forecast_figure, heat_figure
from earl.reports.data import ReportedRun
from earl.reports.episodes import browser
from earl.reports.figures import Figure
from earl.reports.html import count, moment, nowrap, pack, plotly, script_hash, shown
from earl.reports.results import strength_figures
from earl.runs.store import RecordedDecision
from earl.runs.summary import FINAL, tool_use

# The facts at the top of the page, and the table of times. Pure functions.

MISSING = "not recorded yet"


def summary(data: ReportedRun) -> list[tuple[str, str]]:
    numbers = data.numbers
    spent = sum(value for points in numbers.timings.values() for _, value in points)
    played, tokens = (sum(value for _, value in numbers.metrics.get(name, [])) for name in ("episodes", "tokens"))
    return [
        ("Environment", data.config.env.name if data.config else MISSING),
        ("Model", _model(data)),
        ("State", _state(data)),
        ("Steps", _steps(data)),
        ("Played", f"{count(played)} training episodes, {count(tokens)} tokens" if played else MISSING),
        ("Time in steps", nowrap(duration(spent)) if spent else MISSING),
        ("Started", moment(data.started) if data.started else MISSING),
        ("Last change", moment(data.changed)),
        ("Signature", shown(data.signed, 300)),
    ]


def tool_table(data: ReportedRun) -> list[tuple[str, ...]]:
    """Of each tool its name, calls, failures, and the mean time of a call that it waited and ran."""
    rows = []
    for tool, use in tool_use(data.numbers.metrics).items():
        times = [nowrap(duration(use.pop(name, 0.0))) for name in ("queue_seconds", "run_seconds")]
        calls = count(use.pop("calls", 0.0))
        rows.append((tool, calls, ", ".join(f"{count(number)} {what}" for what, number in use.items()), *times))
    return rows


def core_use(data: ReportedRun) -> str:
    """The mean share of the cores that calls had, from the first to the last of a step."""
    shares = [value for _, value in data.series("tool_core_use") if isfinite(value)]
    return f" Cores in use between the first and the last call of a step: {percent(fmean(shares))}." if shares else ""


def _model(data: ReportedRun) -> str:
    if data.model is None:
        return MISSING
    size = f"{count(data.model.parameters)} parameters" if data.model.parameters else "size unknown"
    origin = data.config.model.path if data.config else None
    parts = [size, data.model.shape, f"from {origin}" if origin else ""]
    return ", ".join(shown(part, 120) for part in parts if part)


def _state(data: ReportedRun) -> str:
    step = data.numbers.last_step
    if any(match.phase == FINAL for match in data.numbers.matches):
        return "finished"
    if step is None:
        return "no step recorded yet"
    if data.warm_steps and step <= data.warm_steps:
        return "not finished: in the warm start"
    if data.config and step >= data.config.total_steps:
        return "all steps done, final evaluation not recorded yet"
    return "not finished: in reinforcement learning"


def _steps(data: ReportedRun) -> str:
    done = count(data.step)
    if data.config is None:
        return f"{done} done"
    warm, rest = data.config.warm_start.steps, data.config.run.steps
    parts = f" ({count(warm)} warm start + {count(rest)} reinforcement learning)" if warm else ""
    return f"{done} of {count(warm + rest)}{parts}"


def time_table(data: ReportedRun) -> list[dict[str, Any]]:
    """By stage: mean seconds over the steps that had it, their number, the total, and its share of all time."""
    values = {stage: [value for _, value in data.numbers.timings[stage]] for stage in figures.stages(data)}
    whole = sum(map(sum, values.values())) or 1.0
    return [
        {"stage": stage, "mean": fmean(spent), "times": len(spent), "total": sum(spent), "share": sum(spent) / whole}
        for stage, spent in values.items()
        if spent
    ]


MAX_CHANGES = 100


def changes(data: ReportedRun) -> list[RecordedDecision]:
    return [one for one in data.decisions if one.choice != one.before][-MAX_CHANGES:]


# Pages are self-contained: template, style, script and plotly.js. Text from a model, an environment or a recipe is
# autoescaped, or is in packed data that the script only writes as text. As a second defence, the page's
# Content-Security-Policy allows only its two scripts, by hash, and no requests.

_FOLDER = Path(__file__).parent / "templates"
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {filter.__name__: filter for filter in (percent, count, duration, nowrap, moment, shown)}
_TEMPLATES.globals["results"] = results
_SCRIPTS = ("theme.js", "tables.js", "plots.js", "board.js", "tokens.js", "browser.js", "page.js")


def _fill(template: str, drawn: Iterable[Figure], **values: Any) -> str:
    """Render a template file. `drawn` are all plots of the page; `values` fill the template and include `title`."""
    specs = {one.name: {**one.spec, "choices": one.choices, "title": one.title} for one in drawn if one.spec}
    parts = "\n".join(map(_read, _SCRIPTS))
    script, (library, library_hash) = f'"use strict";\n(() => {{\n{parts}}})();\n', plotly()
    # plotly sets style attributes, and saves images by way of data: and blob: URLs.
    policy = (
        f"default-src 'none'; script-src {script_hash(script)} {library_hash}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return _TEMPLATES.get_template(template).render(
        written=time.time(),
        specs=Markup(pack(specs)),
        style=Markup(_read("style.css")),
        script=Markup(script),
        plotly=Markup(library if specs else ""),
        policy=policy,
        **values,
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _sections(runs: Sequence[ReportedRun]) -> dict[str, list[Figure]]:
    several = len(runs) > 1
    maps = [heat_figure(run, number, named=several) for number, run in enumerate(runs)]
    return {
        "strength": strength_figures(runs),
        "training": figures.training_figures(runs),
        "other": figures.other_figures(runs),
        "context": [*context_figures(runs), forecast_figure(runs), *([m for m in maps if m.spec] if several else maps)],
        "time": [figures.time_figure(runs)],
    }


MAX_EVENTS = 300


def render(runs: Sequence[ReportedRun]) -> str:
    drawn = _sections(runs)
    names = " · ".join(html.shown_line(run.name, 60) for run in runs)
    shared = {
        "title": f"Run{'s' if len(runs) > 1 else ''} {names}",
        "figures": drawn,
        "episodes": Markup(browser(runs)),
        "stored": [run.episodes for run in runs if run.episodes],
    }
    template, values = ("compare.html", _several(runs)) if len(runs) > 1 else ("run.html", _single(runs[0]))
    return _fill(template, chain(*drawn.values()), **shared, **values)


def _single(data: ReportedRun) -> dict[str, Any]:
    return {
        "data": data,
        "facts": summary(data),
        "phases": results.phases(data),
        "words": results.words(data),
        "pairings": results.pairings(data),
        "times": time_table(data),
        "events": data.numbers.events[-MAX_EVENTS:],
        "changes": changes(data),
        "tools": tool_table(data),
        "core_use": core_use(data),
        "runs": [],
    }


def _several(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    measures = dict(measure for run in runs for measure in results.words(run).measures)
    lasts = [results.phases(run)[-1] for run in runs]
    return {
        "runs": runs,
        "changes": [],
        "tools": [],  # a page of one run alone has them
        "facts": [summary(run) for run in runs],
        "colors": [figures.color_of(place) for place in range(len(runs))],
        "rows": results.final_rows(runs, lasts),
        "lasts": lasts,
        "measures": list(measures.items()),
        "differences": results.recipe_differences(runs),
        "times": [time_table(run) for run in runs],
    }
