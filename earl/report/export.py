"""The tables of a report as files: CSV and Parquet."""

import csv
import math
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from earl.errors import EarlError
from earl.report.tables import Table
from earl.report.text import visible
from earl.runs.storage import replace_file, storage

FORMATS = ("csv", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(
    tables: Sequence[Table], folder: Path, formats: Sequence[str] = FORMATS, root: Path | None = None
) -> list[Path]:
    """Write every table in every format as `folder`/NAME.FORMAT, and return the paths.

    Args:
        root: below it no link is followed.

    Raises:
        EarlError: for an unknown format, or when the disk refuses.
    """
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
    """A value for a spreadsheet, which runs text that looks like a formula: such text gets an apostrophe before it."""
    if isinstance(value, str):
        seen = visible(value)
        return f"'{seen}" if seen.startswith(_FORMULA) else seen
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _parquet(table: Table, file: BinaryIO) -> None:
    pq.write_table(pa.table(table.columns), file, compression="zstd")


_WRITERS = {"csv": _csv, "parquet": _parquet}
