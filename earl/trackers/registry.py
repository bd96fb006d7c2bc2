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
}
_SERVED = TrackerEntry("earl.trackers.prometheus:Prometheus", ("prometheus_client",))


def check(names: Sequence[str], port: int | None) -> None:
    """Raise EarlError for a tracker that is unknown, named twice or not installed; nothing is imported."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if names.count(name) > 1:
            raise EarlError(f"{name!r} is named twice; name each tracker once")
        _check_installed(name, TRACKERS[name], f"leave {name!r} out of track.to")
    if port is not None:
        _check_installed(PROMETHEUS, _SERVED, "leave out track.prometheus_port")


def make(name: str, run: TrackedRun, port: int | None = None) -> Tracker:
    """Import and start a tracker that passed `check`. It may raise any exception."""
    module, _, attribute = (_SERVED if name == PROMETHEUS else TRACKERS[name]).target.partition(":")
    factory: Callable[..., Tracker] = getattr(import_module(module), attribute)
    return factory(run, port) if name == PROMETHEUS else factory(run)


def _check_installed(name: str, entry: TrackerEntry, without: str) -> None:
    missing = [module for module in entry.needs if find_spec(module) is None]
    if missing:
        raise EarlError(
            f"tracker {name!r} is not installed (no module {missing[0]!r}); "
            f"install it with: pip install 'earl[{name}]', or {without}"
        )
