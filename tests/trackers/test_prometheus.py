"""The endpoint as a scraper sees it, parsed with the package's own parser."""

import math
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from earl.trackers.prometheus import Prometheus


def samples(tracker: Prometheus) -> dict[tuple[str, ...], float]:
    """(name, label values …) → value; the label `run` is on all of them."""
    text = urlopen(tracker.where, timeout=10).read().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels.pop("run") for sample in found} == {"tictactoe-1"}
    return {(sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value for sample in found}


def test_the_latest_numbers_are_served(begun, record) -> None:
    tracker = Prometheus(begun())
    try:
        assert samples(tracker) == {("earl_step",): 0.0}
        tracker.record(record(1))
        tracker.record(record(2))
        tracker.event(2, "limit", "raised")
        tracker.event(2, "limit", "raised again")
        served = samples(tracker)
    finally:
        tracker.close("finished")
    assert served["earl_step",] == 2
    assert served["earl_reward",] == 0.5
    assert math.isnan(served["earl_loss",])
    assert served["earl_forecast_p95_median",] == math.inf
    assert served["earl_stage_seconds", "rollout"] == 1.5
    assert served["earl_match_fraction", "perfect@0.25", "train", "win", "1"] == 0.5
    assert served["earl_events_total", "limit"] == 2


def test_only_this_machine_may_ask_and_the_port_is_free_again(begun) -> None:
    tracker = Prometheus(begun())
    port = int(tracker.where.split(":")[2].split("/")[0])
    assert tracker.where == f"http://127.0.0.1:{port}/metrics"
    listening = Path("/proc/net/tcp")
    if listening.is_file():
        # Local addresses in hexadecimal, the lowest byte first; state 0A listens.
        rows = [line.split() for line in listening.read_text().splitlines()[1:]]
        assert {row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")} == {
            f"0100007F:{port:04X}"
        }
    tracker.close("finished")
    with pytest.raises(OSError):
        urlopen(tracker.where, timeout=10)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
