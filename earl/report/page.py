"""The page: everything put into one HTML file with Jinja2, plotly.js inside, nothing loaded from anywhere.

What a model, an environment or a recipe wrote passes through autoescaping, or stands in packed data that the page's
script only ever writes as text. Should that fail, the page's own Content-Security-Policy runs only the two scripts
whose hashes it names, and permits no request.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from earl.report import compare, results, text
from earl.report.browser import browser
from earl.report.data import RunData
from earl.report.figures import color_of
from earl.report.packing import pack, plotly, script_hash
from earl.report.sections import Sections, listed
from earl.report.summary import summary, time_table

_FOLDER = Path(__file__).parent / "templates"
_SCRIPTS = ("theme.js", "tables.js", "plots.js", "board.js", "tokens.js", "browser.js", "page.js")
MAX_EVENTS = 300


def title(runs: Sequence[RunData]) -> str:
    """The heading of the page."""
    names = " · ".join(text.shown_line(run.name, 60) for run in runs)
    return f"Run {names}" if len(runs) == 1 else f"Runs {names}"


def render(runs: Sequence[RunData], figures: Sections) -> str:
    """The report of a run, or of several side by side, as HTML."""
    specs = {
        figure.name: {**figure.spec, "choices": figure.choices, "title": figure.title}
        for figure in listed(figures)
        if figure.spec
    }
    script, library, episodes = _script(), plotly(), browser(runs)
    shared = {
        "title": title(runs),
        "written": time.time(),
        "figures": figures,
        "specs": Markup(pack(specs)),
        "episodes": Markup(episodes),
        "stored": [run.episodes for run in runs if run.episodes],
        "style": Markup(_read("style.css")),
        "script": Markup(script),
        "plotly": Markup(library.packed if specs else ""),
        "policy": _policy(script, library.hash),
    }
    return _several(runs, shared) if len(runs) > 1 else _single(runs[0], shared)


def _single(data: RunData, shared: dict[str, Any]) -> str:
    return _template("run.html").render(
        data=data,
        facts=summary(data),
        phases=results.phases(data),
        words=results.words(data),
        pairings=results.pairings(data),
        times=time_table(data),
        events=data.numbers.events[-MAX_EVENTS:],
        runs=[],
        **shared,
    )


def _several(runs: Sequence[RunData], shared: dict[str, Any]) -> str:
    measures = dict(measure for run in runs for measure in results.words(run).measures)
    return _template("compare.html").render(
        runs=runs,
        facts=[summary(run) for run in runs],
        colors=[color_of(place, 0, len(runs)) for place in range(len(runs))],
        rows=compare.final_rows(runs),
        lasts=compare.last_phases(runs),
        measures=list(measures.items()),
        differences=compare.recipe_differences(runs),
        times=[time_table(run) for run in runs],
        **shared,
    )


def _policy(script: str, library: str) -> str:
    # plotly sizes its elements with style attributes and draws images from data: and blob: to save them.
    return (
        f"default-src 'none'; script-src {script_hash(script)} {library}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def _script() -> str:
    parts = "\n".join(_read(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@lru_cache(maxsize=16)
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=text.percent, probability=text.probability, count=text.count, number=text.number, seconds=text.seconds,
        moment=text.moment, shown=text.shown,
    )  # fmt: skip
    environment.globals.update(results=results, compare=compare)
    return environment.get_template(name)
