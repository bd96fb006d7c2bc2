"""The plots of a page, section by section: the same for one run and for several, where lines are named by run."""

from collections.abc import Sequence
from itertools import chain

from earl.report.compare import curve_figures
from earl.report.context import context_figures
from earl.report.course import other_figures, time_figure, training_figures
from earl.report.data import RunData
from earl.report.figures import Figure
from earl.report.forecast import forecast_figure
from earl.report.heat import heat_figure
from earl.report.layouts import layout_figures
from earl.report.strength import strength_figures

Sections = dict[str, list[Figure]]


def sections(runs: Sequence[RunData]) -> Sections:
    """Every plot, by the section that it stands in."""
    several = len(runs) > 1
    maps = [heat_figure(run, number, named=several) for number, run in enumerate(runs)]
    return {
        "strength": curve_figures(runs) if several else strength_figures(runs[0]),
        "training": training_figures(runs),
        "other": other_figures(runs),
        "context": [*context_figures(runs), forecast_figure(runs), *([m for m in maps if m.spec] if several else maps)],
        "layouts": layout_figures(runs),
        "time": [time_figure(runs)],
    }


def listed(found: Sections) -> list[Figure]:
    """All plots in the order of the page."""
    return list(chain(*found.values()))
