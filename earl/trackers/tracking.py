"""The observer that passes a run's numbers to its trackers, and keeps their failures away from the training."""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import Self

from earl.config import TrackConfig
from earl.documents import parse_json_object
from earl.errors import EarlError, boundary, unknown
from earl.observer import RecordedStep
from earl.runs.folder import RunFolder
from earl.runs.storage import OddFile, folder_below, read_below, write_text
from earl.runs.store import Store
from earl.runs.summary import FINAL
from earl.trackers.base import TrackedRun, Tracker

PROMETHEUS = "prometheus"
"""Selected by `track.prometheus_port`, not by name."""


TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("earl.trackers.tensorboard:TensorBoard", "tensorboard"),
    "wandb": ("earl.trackers.wandb:WeightsAndBiases", "wandb"),
    "mlflow": ("earl.trackers.mlflow:MLflow", "mlflow", "sqlalchemy", "alembic"),
    "trackio": ("earl.trackers.trackio:Trackio", "trackio"),
    PROMETHEUS: ("earl.trackers.prometheus:Prometheus", "prometheus_client"),
}
"""Where each is, and the modules of its extra, which has its name."""


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
        missing = [module for module in TRACKERS[name][1:] if find_spec(module) is None]
        if missing:
            without = "out track.prometheus_port" if name == PROMETHEUS else f"{name!r} out of track.to"
            raise EarlError(
                f"tracker {name!r} is not installed (no module {missing[0]!r}); "
                f"install it with: pip install 'earl[{name}]', or leave {without}"
            )


# Secrets to hide: passwords in addresses, and environment variables with a secret's name.

_USER = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 6
"""Shorter values are no secrets, and would match within ordinary words."""


def without_secrets(text: str) -> str:
    """Replace secrets in a text by ***."""
    text = _USER.sub("***@", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET.search(name):
            text = text.replace(value, "***")
    return text


class Tracking:
    """The trackers of a run as one observer; a context manager, so that they are closed. The caller holds the run's
    lock.
    """

    def __init__(self, config: TrackConfig, folder: RunFolder, run: TrackedRun, say: Callable[[str], None]) -> None:
        self._config, self._folder, self._run, self._say = config, folder, run, say
        self._memory = folder.path / "trackers.json"
        self._known: dict[str, dict[str, str | int]] = {}
        self._active: dict[str, Tracker] = {}
        self._had: dict[str, int] = {}  # the last step of each before this start; steps up to it are not sent again
        self._state = "stopped"

    def __enter__(self) -> Self:
        for own in filter(os.path.lexists, (self._folder.path / name for name in self._config.to)):
            with folder_below(self._folder.path, own):
                pass  # the tracker's library would follow a link
        self._known = _read(self._folder.path, self._memory)
        resumed = self._run.begun >= 0
        try:
            for name in wanted(self._config.to, self._config.prometheus_port):
                self._begin(name, resumed)
        except BaseException:
            self._close("failed")
            raise
        return self

    def _begin(self, name: str, resumed: bool) -> None:
        """Start a tracker. A failure ends a new run; a resumed run, whose recipe is fixed, goes on without it."""
        known = self._known.get(name, {})
        run = replace(self._run, identity=str(known.get("identity", "")), port=self._config.prometheus_port or 0)
        with boundary() as fault, redirect_stdout(sys.stderr):
            tracker: Tracker = resolve_name(TRACKERS[name][0])(run)  # it was checked, and may raise any exception
        if fault.message is None:
            had = -1 if tracker.rewinds else int(known.get("step", -1))
            self._active[name], self._had[name] = tracker, had
            self._known[name] = {"identity": tracker.identity, "step": had}
            self._say(f"tracker {name}: {without_secrets(tracker.where)}")
        elif resumed:
            self._off(name, run.begun, fault.message)
        else:
            key = "track.prometheus_port" if name == PROMETHEUS else "track.to"
            raise EarlError(
                f"tracker {name!r} cannot start: {without_secrets(fault.message)}; mend that, or change {key}"
            )

    def step(self, record: RecordedStep) -> None:
        for name in list(self._active):
            due = record.step > self._had[name] or record.phase == FINAL
            if due and self._tell(name, record.step, lambda tracker: tracker.record(record)):
                self._remember(name, record.step)

    def event(self, step: int, kind: str, message: str) -> None:
        if kind == "finish":
            self._state = "finished"
        for name in list(self._active):
            if step > self._had[name]:
                self._tell(name, step, lambda tracker: tracker.event(step, kind, without_secrets(message)))

    def stopping(self) -> None:
        """Do nothing: the step still goes on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = kind is not None and not issubclass(kind, KeyboardInterrupt)
        self._close("failed" if failed else self._state)

    def _close(self, state: str) -> None:
        for name in list(self._active):
            self._tell(name, self._run.begun, lambda tracker: tracker.close(state))
        self._active.clear()

    def _remember(self, name: str, step: int) -> None:
        """Store the tracker's last step at once; after a kill before this, the tracker gets the step twice."""
        self._known[name]["step"] = max(step, self._had[name])
        if not self._active[name].rewinds:
            with suppress(EarlError):  # the run itself fails on a disk that cannot be written
                write_text(self._memory, json.dumps(self._known), self._folder.path)

    def _tell(self, name: str, step: int, do: Callable[[Tracker], None]) -> bool:
        # stdout is reserved for results, and some of these libraries print.
        with boundary() as fault, redirect_stdout(sys.stderr):
            do(self._active[name])
        if fault.message is None:
            return True
        tracker = self._active.pop(name)
        self._off(name, step, fault.message)
        with boundary(), redirect_stdout(sys.stderr):  # it has failed already, so further errors are ignored
            tracker.close("failed")
        return False

    def _off(self, name: str, step: int, why: str) -> None:
        line = " ".join(f"tracker {name} is off, the training goes on: {without_secrets(why)}".split())
        self._say(line)
        with boundary(), Store(self._folder.database) as store:  # the run itself fails on a disk that cannot be written
            store.event(max(step, 0), "tracker", line)


def _read(root: Path, path: Path) -> dict[str, dict[str, str | int]]:
    """Identity and last step of each tracker from earlier starts; empty if there is no file or it is damaged."""
    try:
        known = parse_json_object(read_below(root, path))
    except OddFile:
        raise
    except (OSError, ValueError):
        return {}
    return {name: one for name, one in known.items() if isinstance(one, dict) and type(one.get("step", -1)) is int}
