"""MLflow: RUN/mlflow.db, or the server or database that MLFLOW_TRACKING_URI names."""

import os
import re
import time

from earl.observer import RecordedStep
from earl.runs.storage import checked_database
from earl.trackers.base import TrackedRun, flat_numbers

EXPERIMENT = "earl"
_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_BATCH = 100
"""The most parameters in one request; for metrics it is 1000."""
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # a failure also raises, and is then reported in one line
    # A server that is down may delay a step by seconds, not by the minutes of MLflow's own defaults.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Settings that apply unless the environment sets them."""


class MLflow:
    """Numbers as metrics, the recipe as parameters, the last event of each kind as a tag."""

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        own = run.folder.resolve() / "mlflow.db"
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{checked_database(own)}"
        self._client = MlflowClient(address)
        self.identity = run.identity or self._create(run)
        self._client.update_run(self.identity, status="RUNNING")
        self.where = f"mlflow ui --backend-store-uri {address}, run {self.identity}"

    def _create(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        created: str = self._client.create_run(number, run_name=run.name).info.run_id
        settings = [Param(_REFUSED.sub("_", key), str(value)) for key, value in run.settings()]
        for begin in range(0, len(settings), _BATCH):
            self._client.log_batch(created, params=settings[begin : begin + _BATCH])
        return created

    def record(self, record: RecordedStep) -> None:
        """Log one batch of metrics. MLflow stores NaN, and infinity as the largest number."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = flat_numbers(record).items()
        metrics = [Metric(_REFUSED.sub("_", name), value, now, record.step) for name, value in numbers]
        self._client.log_batch(self.identity, metrics=metrics)

    def event(self, step: int, kind: str, message: str) -> None:
        self._client.set_tag(self.identity, f"event/{kind}", f"step {step}: {message}")

    def close(self, state: str) -> None:
        self._client.set_terminated(self.identity, _STATES[state])
