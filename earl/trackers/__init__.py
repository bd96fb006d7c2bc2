"""Trackers: where a run's numbers go beside its own folder, for those who watch many runs in one place.

    train ─▶ Tracking (an observer) ─┬─▶ TensorBoard   RUN/tensorboard
                                     ├─▶ W&B           RUN/wandb, offline unless WANDB_MODE says otherwise
                                     ├─▶ MLflow        RUN/mlflow.db, or MLFLOW_TRACKING_URI
                                     ├─▶ Trackio       its own folder, or TRACKIO_DIR
                                     └─▶ Prometheus    http://127.0.0.1:PORT/metrics, on demand

Each is an extra of earl and imported when a recipe names it. None can end a training: one that fails is switched
off, which is said and noted.
"""

from earl.trackers.registry import check
from earl.trackers.tracking import Tracking

__all__ = ["Tracking", "check"]
