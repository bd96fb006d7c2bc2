"""What was recorded of runs as tables, and their export as CSV and Parquet."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from earl.errors import EarlError
from earl.matches import NOT_KEPT
from earl.reports.data import RunData
from earl.reports.html import visible
from earl.reports.results import recipe_differences
from earl.runs.storage import replace_file, storage
from earl.trajectory import Author


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length, by name."""

    name: str
    columns: dict[str, list[Any]]


Row = dict[str, Any]


def run_tables(runs: Sequence[RunData]) -> list[Table]:
    """The complete records of the runs: metrics, timings, matches, events, contexts, and the episodes shown."""
    makers: dict[str, Callable[[RunData], list[Row]]] = {
        "metrics": lambda run: _series(run.numbers.metrics, "name", "value"),
        "timings": lambda run: _series(run.numbers.timings, "stage", "seconds"),
        "matches": _matches,
        "events": lambda run: [asdict(event) for event in run.numbers.events],
        "contexts": _contexts,
        "episodes": _episodes,
    }
    tables = []
    for name, rows_of in makers.items():
        rows = [{"run": run.name, **row} for run in runs for row in rows_of(run)]
        if rows:
            tables.append(Table(name, {column: [row[column] for row in rows] for column in rows[0]}))
    differences = recipe_differences(runs) if len(runs) > 1 else []
    if differences:
        names = _distinct([run.name for run in runs])
        values = {name: [found[place] for _, found in differences] for place, name in enumerate(names)}
        tables.append(Table("recipes", {"key": [key for key, _ in differences], **values}))
    return tables


def _matches(run: RunData) -> list[Row]:
    rows = [{"step": one.step, "phase": one.phase, **asdict(one.result)} for one in run.numbers.matches]
    return [{name: value for name, value in row.items() if name not in NOT_KEPT} for row in rows]


def _distinct(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _series(series: dict[str, list[tuple[int, float]]], name: str, value: str) -> list[Row]:
    return [{"step": step, name: key, value: found} for key, points in series.items() for step, found in points]


def _contexts(run: RunData) -> list[Row]:
    known = {author.value: author.name.lower() for author in Author}
    return [{**asdict(row), "author": known.get(row.author, str(row.author))} for row in run.contexts]


def _episodes(run: RunData) -> list[Row]:
    chosen = run.episodes.chosen if run.episodes else ()
    return [
        {
            "step": stored.step,
            "number": stored.number,
            **asdict(stored.trajectory.task),
            "outcome": stored.trajectory.outcome.value,
            "stop": stored.trajectory.stop.value,
            "reward": stored.trajectory.reward,
            "turns": len(stored.trajectory.turns),
            "tokens": len(stored.trajectory.tokens),
            "illegal": stored.trajectory.illegal,
            "error": visible(stored.trajectory.error or "")[:2000],
        }
        for stored in chosen
    ]


FORMATS = ("csv", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(
    tables: Sequence[Table], folder: Path, formats: Sequence[str] = FORMATS, root: Path | None = None
) -> list[Path]:
    """Write `folder`/NAME.FORMAT for every table and format. Below `root` no link is followed. Raises EarlError."""
    if unknown := set(formats) - set(FORMATS):
        raise EarlError(f"format {min(unknown)!r} is not one that tables are written in; use {' or '.join(FORMATS)}")
    with storage(folder, then="export again"):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for name in formats:
            path = folder / f"{table.name}.{name}"
            replace_file(path, partial(_WRITERS[name], table), root)
            written.append(path)
    return written


def _csv(table: Table, file: BinaryIO) -> None:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([_cell(name) for name in table.columns])
    writer.writerows([_cell(value) for value in row] for row in zip(*table.columns.values(), strict=True))
    text.detach()


def _cell(value: Any) -> Any:
    """A value for a spreadsheet. Text that looks like a formula would be run, so it gets a leading apostrophe."""
    if isinstance(value, str):
        seen = visible(value)
        return f"'{seen}" if seen.startswith(_FORMULA) else seen
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _parquet(table: Table, file: BinaryIO) -> None:
    columns = {_utf8(name): [_utf8(value) for value in column] for name, column in table.columns.items()}
    pq.write_table(pa.table(columns), file, compression="zstd")


def _utf8(value: Any) -> Any:
    """Text that Parquet can hold: a run's name may come from a folder whose name is not UTF-8."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


_WRITERS = {"csv": _csv, "parquet": _parquet}
