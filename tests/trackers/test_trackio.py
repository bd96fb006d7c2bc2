"""Trackio's own storage; its folder is chosen when it is imported, so each start is a process of its own."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

START = """
import math, sys
from pathlib import Path
from earl.matches import MatchResult
from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun
from earl.trackers.trackio import Trackio

begun, identity, *steps = sys.argv[1:]
tracker = Trackio(TrackedRun("tictactoe-1", Path("nowhere"), {"run": {"seed": 7}}, int(begun), identity))
match = MatchResult("tictactoe", "perfect@0.25", 1, False, 8, 0.5, 0.25, 0.25, 0.0, 0.0)
for step in map(int, steps):
    metrics = {"reward": 0.25 * step, "loss": math.nan, "forecast/p95/median": math.inf}
    tracker.record(RecordedStep(step, metrics, {"rollout": 1.5}, [match], "train"))
tracker.event(int(steps[-1]), "limit", "raised to 120")
tracker.close("stopped")
print(tracker.identity, file=sys.stderr)
"""
READ = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
run, = trackio.Api().runs("earl")
print(json.dumps([run.name, run.config, SQLiteStorage.get_logs("earl", run.name, run_id=run.id)]))
"""


def python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)


def test_two_starts_of_one_run(tmp_path: Path) -> None:
    identity = python(tmp_path, START, "-1", "", "0", "1").stderr.split()[-1]
    assert identity.startswith("tictactoe-1-")
    assert python(tmp_path, START, "1", identity, "2").stderr.split()[-1] == identity
    name, config, rows = json.loads(python(tmp_path, READ).stdout)
    assert (name, config["run"]) == (identity, {"seed": 7})
    numbers = [row for row in rows if "reward" in row]
    assert [(row["step"], row["reward"]) for row in numbers] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert numbers[0]["match/perfect@0.25/seat_1/win"] == 0.5
    assert math.isnan(float(numbers[0]["loss"]))
    assert float(numbers[0]["forecast/p95/median"]) == math.inf
    assert [(row["step"], row["event/limit"]) for row in rows if "event/limit" in row] == [
        (1, "raised to 120"),
        (2, "raised to 120"),
    ]
