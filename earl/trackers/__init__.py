"""Trackers: write a run's numbers to other tools beside its own folder. `Tracking`, an observer, feeds them.

TensorBoard writes RUN/tensorboard; W&B RUN/wandb, offline unless WANDB_MODE says otherwise; MLflow RUN/mlflow.db, or
MLFLOW_TRACKING_URI; Trackio its own folder, or TRACKIO_DIR; Prometheus serves http://127.0.0.1:PORT/metrics.

Each is an extra of earl, imported only when a recipe names it. A tracker cannot end a training: one that fails is
switched off, with a message and an event.
"""

from earl.trackers.tracking import Tracking, check

__all__ = ["Tracking", "check"]
