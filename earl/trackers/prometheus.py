"""Prometheus: serves the latest numbers at http://127.0.0.1:PORT/metrics, on this machine only."""

import re

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, start_http_server

from earl.matches import FRACTIONS
from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun

HOST = "127.0.0.1"
"""Loopback only; remote access needs a tunnel or a proxy that the user sets up."""
_REFUSED = re.compile(r"[^a-zA-Z0-9_]")


class Prometheus:
    """Serves the latest value of each number; every sample is labelled with the run's name."""

    identity = ""
    rewinds = True

    def __init__(self, run: TrackedRun) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._name, self._registry = run.name, CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._events = Counter("earl_events", "Events of the run by kind.", ["run", "kind"], registry=self._registry)
        self._set("earl_step", "The last step that is done.", max(run.begun, 0))
        self._server, self._thread = start_http_server(run.port, HOST, self._registry)
        self.where = f"http://{HOST}:{self._server.server_port}/metrics"

    def record(self, record: RecordedStep) -> None:
        for name, value in record.metrics.items():
            self._set(f"earl_{_REFUSED.sub('_', name)}", f"{name} of the last step.", value)
        for stage, value in record.timings.items():
            self._set("earl_stage_seconds", "Seconds of the last step.", value, stage=stage)
        for match in record.matches:
            place = {"phase": record.phase, "opponent": match.opponent, "seat": str(match.seat)}
            for result in FRACTIONS:
                value = getattr(match, result)
                self._set("earl_match_fraction", "The last evaluation.", value, **place, result=result)
        self._set("earl_step", "The last step that is done.", record.step)

    def event(self, step: int, kind: str, message: str) -> None:
        self._events.labels(self._name, kind).inc()

    def close(self, state: str) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _set(self, name: str, about: str, value: float, **labels: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, about, ["run", *labels], registry=self._registry)
        self._gauges[name].labels(self._name, *labels.values()).set(value)
