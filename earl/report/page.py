"""The page of a run, or of several: everything put into one HTML file with Jinja2."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from earl.report import compare, results, text
from earl.report.browser import browser
from earl.report.data import RunData
from earl.report.figures import color_of
from earl.report.frame import fill
from earl.report.layouts import changes
from earl.report.sections import Sections, listed
from earl.report.summary import summary, time_table

MAX_EVENTS = 300


def title(runs: Sequence[RunData]) -> str:
    """The heading of the page."""
    names = " · ".join(text.shown_line(run.name, 60) for run in runs)
    return f"Run {names}" if len(runs) == 1 else f"Runs {names}"


def render(runs: Sequence[RunData], figures: Sections) -> str:
    """The report of a run, or of several side by side, as HTML."""
    shared = {
        "title": title(runs),
        "figures": figures,
        "episodes": Markup(browser(runs)),
        "stored": [run.episodes for run in runs if run.episodes],
    }
    template, values = ("compare.html", _several(runs)) if len(runs) > 1 else ("run.html", _single(runs[0]))
    return fill(template, listed(figures), **shared, **values)


def _single(data: RunData) -> dict[str, Any]:
    return {
        "data": data,
        "facts": summary(data),
        "phases": results.phases(data),
        "words": results.words(data),
        "pairings": results.pairings(data),
        "times": time_table(data),
        "events": data.numbers.events[-MAX_EVENTS:],
        "changes": changes(data),
        "runs": [],
    }


def _several(runs: Sequence[RunData]) -> dict[str, Any]:
    measures = dict(measure for run in runs for measure in results.words(run).measures)
    return {
        "runs": runs,
        "facts": [summary(run) for run in runs],
        "colors": [color_of(place, 0, len(runs)) for place in range(len(runs))],
        "rows": compare.final_rows(runs),
        "lasts": compare.last_phases(runs),
        "measures": list(measures.items()),
        "differences": compare.recipe_differences(runs),
        "times": [time_table(run) for run in runs],
    }
