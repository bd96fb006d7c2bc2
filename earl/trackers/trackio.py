"""Trackio: its own folder, or TRACKIO_DIR; looked at with `trackio show --project earl`."""

import secrets

import trackio

from earl.trackers.base import Record, TrackedRun

PROJECT = "earl"


class Trackio:
    """Numbers and texts under their step.

    Trackio finds a run by its name, and many runs share a project; so the name gets a few letters of its own.
    It writes from a thread, and what fails there it tells as a warning of its own.
    """

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

    def record(self, record: Record) -> None:
        """One row."""
        self._run.log(record.numbers(), step=record.step)

    def event(self, step: int, kind: str, message: str) -> None:
        """A row with a text."""
        self._run.log({f"event/{kind}": message}, step=step)

    def close(self, state: str) -> None:
        """Wait until everything is written."""
        del state
        trackio.finish()  # the package's own: its run's would be ended once more, aloud, when Python ends
