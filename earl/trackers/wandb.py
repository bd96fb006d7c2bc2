"""Weights & Biases: RUN/wandb, offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

import os
import secrets
from typing import Any

from earl.trackers.base import Record, TrackedRun

PROJECT = "earl"


class WeightsAndBiases:
    """Numbers over `step`, events as texts, the recipe as the config.

    Its own step counter only grows and a resumed run's starts behind the last one logged, so `step` is a number
    like the others and the axis of all plots. Each start writes a folder of its own under the same id.
    """

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode != "online":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        self.identity = run.identity or secrets.token_hex(4)
        quiet: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=self.identity,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.recipe),
            settings=wandb.Settings(mode=mode, **quiet),
        )
        self._run.define_metric("*", step_metric="step")
        sync = "" if mode == "online" else f"; wandb sync {run.folder}/wandb/offline-run-* sends it"
        self.where = f"{mode}, id {self.identity}{sync}"

    def record(self, record: Record) -> None:
        """One row of the history."""
        self._run.log({**record.numbers(), "step": record.step})

    def event(self, step: int, kind: str, message: str) -> None:
        """A row with a text."""
        self._run.log({f"event/{kind}": message, "step": step})

    def close(self, state: str) -> None:
        """Wait until everything is written, and sent when online."""
        import wandb

        self._run.finish(exit_code=int(state == "failed"))
        wandb.teardown()  # its service writes the file's end after `finish` has come back
