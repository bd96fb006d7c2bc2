"""Trackio: its own folder, or TRACKIO_DIR; shown by `trackio show --project earl`."""

import secrets

import trackio

from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun, flat_numbers

PROJECT = "earl"


class Trackio:
    """Trackio identifies a run by its name, so the name gets a random suffix. It reports failures only as warnings."""

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        self.identity = run.identity or f"{run.name}-{secrets.token_hex(4)}"
        self._run = trackio.init(
            project=PROJECT,
            name=self.identity,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        self.where = f"trackio show --project {PROJECT}, run {self.identity}"

    def record(self, record: RecordedStep) -> None:
        self._run.log(flat_numbers(record), step=record.step)

    def event(self, step: int, kind: str, message: str) -> None:
        self._run.log({f"event/{kind}": message}, step=step)

    def close(self, state: str) -> None:
        trackio.finish()  # not the run's own `finish`: that one runs again, with output, when Python exits
