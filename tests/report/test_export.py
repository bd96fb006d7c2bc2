"""Tables as files."""

import csv
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from earl import reports
from earl.errors import EarlError
from earl.reports.export import Table, export
from earl.runs.folder import RunFolder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_is_written_in_both_formats(runs: Any, tmp_path: Path) -> None:
    written = reports.write_tables(runs.run(), to=tmp_path / "tables")
    names = {path.stem for path in written}
    assert names == {"metrics", "timings", "matches", "events", "contexts", "episodes"}
    assert {path.suffix for path in written} == {".csv", ".parquet"} and len(written) == 2 * len(names)
    for name in names:
        table = pq.read_table(tmp_path / "tables" / f"{name}.parquet")
        assert table.num_rows == len(rows(tmp_path / "tables" / f"{name}.csv")) > 0
        assert table.column_names == list(rows(tmp_path / "tables" / f"{name}.csv")[0])


def test_several_runs_share_their_tables(runs: Any, tmp_path: Path) -> None:
    reports.write_tables(runs.run(name="a"), runs.run(name="b", limit=200), to=tmp_path, formats=["csv"])
    assert {row["run"] for row in rows(tmp_path / "metrics.csv")} == {"a", "b"}
    assert {"key": "context.limit", "a": "120", "b": "200"} in rows(tmp_path / "recipes.csv")


def test_text_that_looks_like_a_formula_is_none_for_a_spreadsheet(tmp_path: Path) -> None:
    export([Table("t", {"text": ["=HYPERLINK(1)", "a\x1b[31m,b", None], "number": [-1.5, float("nan"), 2]})], tmp_path)
    assert [tuple(row.values()) for row in rows(tmp_path / "t.csv")] == [
        ("'=HYPERLINK(1)", "-1.5"),
        ("a⟨ESC⟩[31m,b", ""),
        ("", "2"),
    ]
    assert pq.read_table(tmp_path / "t.parquet")["text"].to_pylist()[0] == "=HYPERLINK(1)"


def test_a_run_whose_folder_has_no_utf_8_name_is_exported(runs: Any, tmp_path: Path) -> None:
    odd = runs.run(name="a").path.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    reports.write_tables(RunFolder(odd), runs.run(name="b", limit=200), to=tmp_path / "tables")
    assert set(pq.read_table(tmp_path / "tables" / "events.parquet")["run"].to_pylist()) == {"caf\\udce9", "b"}
    assert "caf\\udce9" in pq.read_table(tmp_path / "tables" / "recipes.parquet").column_names
    assert rows(tmp_path / "tables" / "events.csv")[0]["run"].startswith("caf")


def test_faults_are_told(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="use csv or parquet"):
        export([], tmp_path, ["xls"])
    (tmp_path / "file").write_text("")
    with pytest.raises(EarlError, match="folder is needed"):
        export([], tmp_path / "file")
