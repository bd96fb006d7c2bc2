"""Trackers by name. A name stands for an import string, so that no tracker's package is loaded unless it is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from earl.errors import EarlError, unknown
from earl.trackers.base import TrackedRun, Tracker

PROMETHEUS = "prometheus"
"""Asked for by its port, not by name."""


@dataclass(frozen=True, slots=True)
class TrackerEntry:
    """A tracker that can be named."""

    target: str
    """What makes it of a Run, as "module:attribute"."""
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
    """Whether the trackers of a recipe are known and installed; nothing is loaded.

    Raises:
        EarlError: for an unknown name (with the nearest one), one named twice, or one that is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if names.count(name) > 1:
            raise EarlError(f"{name!r} is named twice; name each tracker once")
        _check_installed(name, TRACKERS[name], f"leave {name!r} out of track.to")
    if port is not None:
        _check_installed(PROMETHEUS, _SERVED, "leave out track.prometheus_port")


def make(name: str, run: TrackedRun, port: int | None = None) -> Tracker:
    """Load and begin a tracker that `check` let pass. It may raise anything."""
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
