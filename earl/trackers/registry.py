"""Trackers by name. A name maps to an import string, so that a tracker's package is imported only when it is used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from earl.errors import EarlError, unknown
from earl.trackers.base import TrackedRun, Tracker

PROMETHEUS = "prometheus"
"""Selected by `track.prometheus_port`, not by name."""


@dataclass(frozen=True, slots=True)
class TrackerEntry:
    target: str
    needs: tuple[str, ...]
    """The modules of its extra; the extra has the tracker's name."""


TRACKERS = {
    "tensorboard": TrackerEntry("earl.trackers.tensorboard:TensorBoard", ("tensorboard",)),
    "wandb": TrackerEntry("earl.trackers.wandb:WeightsAndBiases", ("wandb",)),
    "mlflow": TrackerEntry("earl.trackers.mlflow:MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "trackio": TrackerEntry("earl.trackers.trackio:Trackio", ("trackio",)),
    PROMETHEUS: TrackerEntry("earl.trackers.prometheus:Prometheus", ("prometheus_client",)),
}


def wanted(names: Sequence[str], port: int | None) -> list[str]:
    return [*names, *([] if port is None else [PROMETHEUS])]


def check(names: Sequence[str], port: int | None) -> None:
    """Raise EarlError for a tracker that is unknown, named twice or not installed; nothing is imported."""
    for name in names:
        if name not in TRACKERS or name == PROMETHEUS:
            raise unknown("tracker", name, TRACKERS.keys() - {PROMETHEUS})
        if names.count(name) > 1:
            raise EarlError(f"{name!r} is named twice; name each tracker once")
    for name in wanted(names, port):
        missing = [module for module in TRACKERS[name].needs if find_spec(module) is None]
        if missing:
            without = "out track.prometheus_port" if name == PROMETHEUS else f"{name!r} out of track.to"
            raise EarlError(
                f"tracker {name!r} is not installed (no module {missing[0]!r}); "
                f"install it with: pip install 'earl[{name}]', or leave {without}"
            )


def make(name: str, run: TrackedRun) -> Tracker:
    """Import and start a tracker that passed `check`. It may raise any exception."""
    module, _, attribute = TRACKERS[name].target.partition(":")
    factory: Callable[[TrackedRun], Tracker] = getattr(import_module(module), attribute)
    return factory(run)
