"""The report: one HTML file that shows a run, opens offline, and holds everything it needs.

run folder ─▶ data (read) ─▶ results, figures, episodes (pure) ─▶ page (template) ─▶ report.html
"""

from pathlib import Path

from earl.report.data import gather
from earl.report.page import render
from earl.runs.folder import RunFolder
from earl.runs.storage import write_text

__all__ = ["write"]


def write(folder: RunFolder) -> Path:
    """Write `report.html` into a run's folder, whole or not at all, and return its path.

    Works at any moment of a run's life: what is missing is shown as "not recorded yet", what cannot be read
    is named on the page. Reads only; a run that goes on is not disturbed.

    Raises:
        EarlError: when the disk refuses the file.
    """
    write_text(folder.report, render(gather(folder)))
    return folder.report
