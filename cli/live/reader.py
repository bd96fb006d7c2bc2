"""Polls a run's folder for the live view. Reads only what has changed, and never blocks the writer."""

import math
import time
from dataclasses import replace
from pathlib import Path

from earl.cli.live.now import Points, RunNow
from earl.config import Config
from earl.errors import EarlError
from earl.recipe import build
from earl.runs import store
from earl.runs.folder import RunFolder
from earl.runs.storage import storage
from earl.runs.store import Numbers, files_of
from earl.runs.summary import changed, state_of

MOST = 1e300
"""A measured value from here on counts as NaN: a sum or difference of such values may be infinite."""
Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Reader:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: Fingerprint = ()
        self._numbers = self._shown = Numbers()
        self._problem: str | None = None
        self._config, self._recipe_problem = _recipe(folder)

    def read(self) -> RunNow:
        """Read the run's state. Errors become `problems`, old numbers stay. Raises EarlError if the folder is gone."""
        if not self._folder.config.is_file():
            raise EarlError(
                f"run {self._folder.name!r} is gone from {self._folder.path}: a run that fails before its first "
                "checkpoint is removed; its own terminal says why"
            )
        with storage(self._folder.path):
            self._refresh()
            return RunNow(
                name=self._folder.path.resolve().name,
                config=self._config,
                numbers=self._shown,
                state=state_of(self._folder, self._shown.matches),
                changed=changed(self._folder),
                time=time.time(),
                problems=tuple(filter(None, (self._recipe_problem, self._problem))),
            )

    def _refresh(self) -> None:
        fingerprint = tuple(map(_fingerprint, files_of(self._folder.database)))
        if fingerprint == self._seen:
            return
        if fingerprint[0] is None:
            self._numbers, self._problem = Numbers(), None
        else:
            try:
                self._numbers, self._problem = store.read_numbers(self._folder.database, self._numbers), None
            except EarlError as error:
                self._problem = str(error)
                return  # the next attempt may succeed
        metrics, timings = _bounded(self._numbers.metrics), _bounded(self._numbers.timings)
        self._shown = replace(self._numbers, metrics=metrics, timings=timings)
        self._seen = fingerprint


def _bounded(series: dict[str, Points]) -> dict[str, Points]:
    return {
        name: [(step, math.nan if MOST <= abs(value) < math.inf else value) for step, value in points]
        for name, points in series.items()
    }


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Changes when a file is written. None if missing or empty: readers of a database leave an empty log beside it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found.st_size else None


def _recipe(folder: RunFolder) -> tuple[Config | None, str | None]:
    try:
        return build(folder.recipe()), None
    except EarlError as error:
        return None, str(error)
