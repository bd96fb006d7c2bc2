"""`earl runs` and `earl report`: reading what there is without touching it."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from earl.reports.data import ReportedRun
from earl.runs.folder import RunFolder, create
from earl.runs.store import Store


def test_the_list_of_runs(earl, trained: Path) -> None:
    said = earl("runs", "--runs", trained.parent)
    assert (said.code, said.err) == (0, "")
    [line] = [line for line in said.out.splitlines() if "done" in line]
    assert line.split()[:4] == ["done", "tictactoe", "3/3", "finished"]
    assert "random" in line
    [run] = earl("runs", "--runs", trained.parent, "--json").json
    assert (run["run"], run["step"], run["steps"], run["state"]) == ("done", 3, 3, "finished")
    assert [entry["opponent"] for entry in run["evaluation"]] == ["perfect", "random"]


def test_no_runs(earl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = earl("runs")
    assert (said.code, said.out) == (0, "")
    assert said.err == "no runs in runs yet; start one with: earl train tictactoe\n"
    assert earl("runs", "--json").json == []
    said = earl("runs", "--runs", tmp_path / "nowhere")
    assert said.code == 2
    assert "is no folder" in said.err


def test_states_of_runs(earl, tiny: Path, tmp_path: Path, trained: Path) -> None:
    recipe = (trained / "config.toml").read_text()
    create(tmp_path / "runs", "new", recipe)
    going = create(tmp_path / "runs", "going", recipe)
    going.lock.write_text(f"{os.getpid()}\n")
    with Store(going.database) as store:
        store.record_step(1, {"reward": 0.5}, {})
    killed = create(tmp_path / "runs", "killed", recipe)
    killed.lock.write_text("999999999\n")
    create(tmp_path / "runs", "broken", "run = \x1b[31m")
    torn = create(tmp_path / "runs", "torn", recipe)
    torn.database.write_bytes(b"not a database at all" * 100)
    said = earl("runs", "--runs", tmp_path / "runs", "--json")
    states = {run["run"]: run["state"] for run in said.json}
    assert states == {"new": "stopped", "going": "running", "killed": "stopped", "broken": "damaged", "torn": "damaged"}
    table = earl("runs", "--runs", tmp_path / "runs").out
    assert "is not TOML" in table
    assert "\x1b" not in table


def test_runs_are_listed_by_when_they_began_whatever_their_files_dates(earl, trained: Path, tmp_path: Path) -> None:
    recipe = (trained / "config.toml").read_text()
    for name, time in (("young", 1_700_000_000.0), ("old", 1_600_000_000.0), ("unbegun", None)):
        run = create(tmp_path / "runs", name, recipe)
        if time is not None:
            with Store(run.database) as store:
                store.event(0, "start", "started")
            with closing(sqlite3.connect(run.database)) as database, database:
                database.execute("UPDATE events SET time = ?", (time,))
    told = earl("runs", "--runs", tmp_path / "runs", "--json").json
    assert [(run["run"], (run["started"] or "never")[:4]) for run in told] == [
        ("old", "2020"),
        ("young", "2023"),
        ("unbegun", "neve"),
    ]
    shutil.copytree(tmp_path / "runs" / "old", tmp_path / "copy")
    assert ReportedRun(RunFolder(tmp_path / "copy")).started == 1_600_000_000.0


def test_the_report_is_written_again(earl, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    (tmp_path / "copy" / "report.html").unlink()
    said = earl("report", "copy", "--runs", tmp_path)
    assert (said.code, said.out) == (0, f"{tmp_path / 'copy' / 'report.html'}\n")
    assert (tmp_path / "copy" / "report.html").is_file()
    said = earl("report", "kopy", "--runs", tmp_path)
    assert said.code == 2
    assert "did you mean 'copy'?" in said.err


def test_reports_of_several_runs(earl, trained: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(trained, tmp_path / name)
    said = earl("report", "one", "two", "--runs", tmp_path, "--json")
    assert said.code == 0 and Path(said.json["report"]) == tmp_path / "report-one-two.html"
    said = earl("report", "one", "one", "--runs", tmp_path, "--out", tmp_path / "page.html")
    assert (said.code, said.out) == (0, f"{tmp_path / 'page.html'}\n"), "a run named twice is one run"
    assert earl("report", "--runs", tmp_path).code == 2
