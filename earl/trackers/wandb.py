"""Weights & Biases: RUN/wandb, offline unless WANDB_MODE says otherwise; `wandb sync` uploads it later."""

import os
import secrets
from typing import Any

from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun, flat_numbers

PROJECT = "earl"


class WeightsAndBiases:
    """W&B's step counter only grows, and in a resumed run it starts after the last logged step. So `step` is logged as
    a number, and is the axis of all plots. Each start writes a separate folder under the same id.
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

    def record(self, record: RecordedStep) -> None:
        self._run.log({**flat_numbers(record), "step": record.step})

    def event(self, step: int, kind: str, message: str) -> None:
        self._run.log({f"event/{kind}": message, "step": step})

    def close(self, state: str) -> None:
        import wandb

        self._run.finish(exit_code=int(state == "failed"))
        wandb.teardown()  # W&B's service writes the end of the file after `finish` has returned
