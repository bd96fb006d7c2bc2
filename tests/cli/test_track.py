"""Training with trackers, as a user asks for it: they hold what the run's own database holds, each step once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from earl.runs.folder import RunFolder
from earl.runs.store import Store

EVERY = 'track.to=["tensorboard", "mlflow"]'


def in_database(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    with Store(folder.database, read_only=True) as store:
        return {name: series for name, series in store.metrics().items() if name in ("reward", "entropy")}


def in_tensorboard(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in ("reward", "entropy")}


def in_mlflow(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("earl").experiment_id])
    assert run.info.status == "FINISHED"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in ("reward", "entropy")}
    return {name: sorted((metric.step, metric.value) for metric in metrics) for name, metrics in history.items()}


def rounded(series: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard keeps single precision."""
    return {name: [(step, pytest.approx(value, rel=1e-6)) for step, value in pairs] for name, pairs in series.items()}


def test_tensorboard_beside_the_endpoint(earl: Callable, tiny: Path, tmp_path: Path) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a", "--json"]
    said = earl(*line, "--set", 'track.to=["tensorboard"]', "--set", "track.prometheus_port=0")
    assert said.code == 0, said.err
    assert said.json["run"] == "a"  # nothing but the result on stdout
    assert "tracker tensorboard: tensorboard --logdir" in said.err
    assert "tracker prometheus: http://127.0.0.1:" in said.err
    folder = RunFolder(tmp_path / "a")
    assert [step for step, _ in in_database(folder)["reward"]] == [2, 3]
    assert in_tensorboard(folder) == rounded(in_database(folder))
    assert "tracker tensorboard" in folder.log.read_text()


@pytest.mark.slow
def test_a_killed_run_has_each_step_once(earl: Callable, start: Callable, tiny: Path, tmp_path: Path) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a", "--steps", 14]
    sizes = ["--set", "run.checkpoint_every=6", "--set", "evaluate.every=5"]
    with start(*line, *sizes, "--set", EVERY, start_new_session=True) as process:
        for said in process.stderr:
            if "step 10/15" in said:  # between the checkpoints of 6 and 12
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.stderr.read()
    assert earl("train", "--resume", "a", "--runs", tmp_path).code == 0
    folder = RunFolder(tmp_path / "a")
    expected = in_database(folder)
    assert [step for step, _ in expected["reward"]] == list(range(2, 16))
    assert in_tensorboard(folder) == rounded(expected)
    assert in_mlflow(folder) == expected


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ('track.to=["wandbb"]', "track: unknown tracker 'wandbb'; did you mean 'wandb'?"),
        ('track.to=["wandb", "wandb"]', "track: 'wandb' is named twice; name each tracker once"),
        ("track.prometheus_port=70000", "track.prometheus_port = 70000"),
        ("track.prometheus_port=-1", "track.prometheus_port = -1"),
    ],
)
def test_a_wrong_setting_writes_nothing(
    earl: Callable, tiny: Path, tmp_path: Path, assignment: str, message: str
) -> None:
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--set", assignment)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert not (tmp_path / "runs").exists()
