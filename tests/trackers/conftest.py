"""A short history that every tracker is told, and the settings of the trackers' packages kept from the tests."""

import math
from pathlib import Path

import pytest

from earl.matches import MatchResult
from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun

RECIPE = {"env": {"name": "tictactoe", "opponents": {"perfect@0.25": 1.0}}, "run": {"steps": 4, "seed": 7}}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user's shell says must not lead a test elsewhere."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def begun(tmp_path: Path):
    """Makes the run as a tracker sees it when it begins, or goes on from a checkpoint."""
    return lambda step=-1, identity="": TrackedRun("tictactoe-1", tmp_path, RECIPE, step, identity)


@pytest.fixture
def record():
    """Makes the record of a step: reward 0.25 x step, a loss that is no number, a horizon without end."""

    def make(step: int, phase: str = "train") -> RecordedStep:
        fractions = {"win": 0.5, "draw": 0.25, "loss": 0.25, "illegal": 0.0, "truncated": 0.0}
        match = MatchResult("tictactoe", "perfect@0.25", 1, False, 8, **fractions)
        metrics = {"reward": 0.25 * step, "loss": math.nan, "forecast/p95/median": math.inf}
        return RecordedStep(step, {} if phase == "final" else metrics, {"rollout": 1.5}, [match], phase)

    return make
