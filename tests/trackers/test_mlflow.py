"""The run's own database, read back with MLflow's client."""

import math
from pathlib import Path

import pytest

from earl.trackers.mlflow import MLflow

pytestmark = pytest.mark.slow


def test_two_starts_of_one_run(begun, record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    tracker = MLflow(begun())
    for step in (0, 1):
        tracker.record(record(step))
    tracker.event(1, "limit", "raised to 120")
    tracker.close("stopped")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    assert client.get_run(tracker.identity).info.status == "KILLED"

    again = MLflow(begun(1, tracker.identity))
    assert client.get_run(tracker.identity).info.status == "RUNNING"
    again.record(record(2))
    again.record(record(2, "final"))
    again.close("finished")

    found = client.get_run(tracker.identity)
    assert (found.info.run_name, found.info.status) == ("tictactoe-1", "FINISHED")
    assert found.data.params["run.seed"] == "7"
    assert found.data.tags["event/limit"] == "step 1: raised to 120"

    def series(name: str) -> list[tuple[int, float]]:
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(tracker.identity, name))

    assert series("reward") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    # "@" is no character of MLflow's names.
    assert series("match/perfect_0.25/seat_1/win") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert series("final/perfect_0.25/seat_1/draw") == [(2, 0.25)]
    assert all(math.isnan(value) for _, value in series("loss"))
    assert series("forecast/p95/median")[0][1] > 1e308  # the largest number that its database takes
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]  # and no ./mlruns


def test_where_to_is_the_environments_to_say(begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    MLflow(begun()).close("failed")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.db"]
