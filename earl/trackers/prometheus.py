"""Prometheus: serves the latest numbers at http://127.0.0.1:PORT/metrics, on this machine only."""

import re
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from earl.trackers.base import RESULTS, Record, TrackedRun

HOST = "127.0.0.1"
"""Loopback only; remote access needs a tunnel or a proxy that the user sets up."""
_REFUSED = re.compile(r"[^a-zA-Z0-9_]")


class Prometheus(Collector):
    """Serves the latest value of each number; every sample is labelled with the run's name."""

    identity = ""
    rewinds = True

    def __init__(self, run: TrackedRun, port: int) -> None:
        self._name = run.name
        self._step = max(run.begun, 0)
        self._metrics: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._matches: dict[tuple[str, ...], float] = {}
        self._events: Counter[str] = Counter()
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(port, HOST, registry)
        self.where = f"http://{HOST}:{self._server.server_port}/metrics"

    def record(self, record: Record) -> None:
        """Replace the dicts instead of changing them, so the server's thread sees either the old or the new numbers."""
        self._step = record.step
        self._metrics = {**self._metrics, **record.metrics}
        self._seconds = {**self._seconds, **record.timings}
        self._matches = self._matches | {
            (record.phase, match.opponent, str(match.seat), name): getattr(match, name)
            for match in record.matches
            for name in RESULTS
        }

    def event(self, step: int, kind: str, message: str) -> None:
        del step, message
        self._events = self._events + Counter([kind])

    def close(self, state: str) -> None:
        del state
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterable[Metric]:
        """The samples to serve; called in the server's thread."""
        yield self._gauge("earl_step", "The last step that is done.", [], {(): self._step})
        for name, value in self._metrics.items():
            yield self._gauge(f"earl_{_REFUSED.sub('_', name)}", f"{name} of the last step.", [], {(): value})
        seconds: dict[tuple[str, ...], float] = {(stage,): value for stage, value in self._seconds.items()}
        yield self._gauge("earl_stage_seconds", "Seconds of the last step.", ["stage"], seconds)
        labels = ["phase", "opponent", "seat", "result"]
        yield self._gauge("earl_match_fraction", "The last evaluation.", labels, self._matches)
        events = CounterMetricFamily("earl_events", "What happened.", labels=["run", "kind"])
        for kind, count in self._events.items():
            events.add_metric([self._name, kind], count)
        yield events

    def _gauge(
        self, name: str, about: str, labels: list[str], values: dict[tuple[str, ...], float]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, about, labels=["run", *labels])
        for key, value in values.items():
            family.add_metric([self._name, *key], value)
        return family
