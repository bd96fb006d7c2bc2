"""The report: one self-contained HTML file about one run, or several side by side.

run folders ─▶ data (read) ─▶ figures, results, browser (pure) ─▶ page (template) ─▶ report.html
"""

from collections.abc import Sequence
from pathlib import Path

from earl.errors import EarlError
from earl.reports.data import MAX_EPISODES, ReportedRun
from earl.reports.page import render
from earl.runs.folder import RunFolder
from earl.runs.storage import write_text

__all__ = ["place_for", "write"]

MAX_NAME = 120


def write(*folders: RunFolder, out: Path | None = None) -> Path:
    """Write the report of a run, or of several side by side, atomically, and return its path. Raises EarlError.

    Works at any time of a run: missing parts are shown as "not recorded yet", and unreadable parts are named on the
    page. Runs are only read. `out` defaults to `place_for`.
    """
    if out and not out.parent.is_dir():
        raise EarlError(f"{out.parent} is no folder; make it, or give another --out than {out}")
    path = out or place_for(folders)
    runs = [ReportedRun(folder, MAX_EPISODES // len(folders)) for folder in folders]
    write_text(path, render(runs), _run_around(path, folders))
    return path


def _run_around(path: Path, folders: Sequence[RunFolder]) -> Path | None:
    """The run folder that contains `path`, if any: within it no symbolic link is followed."""
    return next((f.path for f in folders if path.absolute().is_relative_to(f.path.absolute())), None)


def place_for(folders: Sequence[RunFolder]) -> Path:
    """`report.html` in a run's folder; for several runs a file beside the first one, named after all of them."""
    if len(folders) == 1:
        return folders[0].report
    first = folders[0].path.resolve()
    names = "-".join(folder.path.resolve().name for folder in folders)
    return first.parent / f"report-{names.encode()[:MAX_NAME].decode(errors='ignore')}.html"
