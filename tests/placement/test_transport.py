"""Rows by either way: the same numbers, also when somebody is killed or stopped while rows are exchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.benchmarks.faults import RECIPE, Blow, Saboteur, _signal, finished, numbers
from earl.dispatch.plan import volume
from earl.dispatch.transports.choice import HostLink
from earl.parallel.layout import Layout
from earl.placement.ray.exchange_member import LEARNED, EpisodeTable, Manifest
from earl.placement.ray.row_exchange import Traffic
from earl.recipe import build, override
from earl.runs.store import Store

BLOWS = [
    # Of a worker's calls in the stage, the first one joins the group, and each step has one more.
    Blow("rollout worker", "dispatch", "kill", member=1, call=3, delay=0.0),
    Blow("rollout worker", "dispatch", "stop", member=0, call=6, delay=0.0),
    Blow("learner rank", "dispatch", "kill", member=1, call=9, delay=0.0),
]


def run(root, way, *blows):
    config = build(override(RECIPE, [f'placement.transport="{way}"', "placement.checksums=true"]))
    saboteur = Saboteur([*blows], _signal)
    folder = finished(root, way, config, saboteur)
    assert saboteur.struck == [*blows]
    return folder


@pytest.mark.slow
def test_rows_by_objects_and_by_peers_who_are_killed_and_stopped_are_the_same_to_the_bit(tmp_path):
    objects, peers = run(tmp_path, "objects"), run(tmp_path, "peers", *BLOWS)
    assert numbers(objects) == numbers(peers)
    with Store(peers.database, read_only=True) as store:
        assert {value for _, value in store.metrics()["dispatch/peers"]} == {1.0}
        events = [event.message for event in store.events() if event.kind in ("dispatch", "recovered")]
    for name in ("rollout worker 1", "rollout worker 0", "learner rank"):
        assert any(name in message and "during dispatch" in message for message in events), events


def manifest(random, rows, workers, layout, hosts):
    counts = random.integers(1, 500, rows).astype(np.int32)
    ones = np.ones_like(counts)
    table = EpisodeTable(
        counts, ones, ones, np.arange(rows, dtype=np.int32), random.integers(0, workers, rows), LEARNED
    )
    part = random.integers(0, layout.dp, rows).astype(np.int32)
    return Manifest(table, part, layout, random.integers(0, hosts, layout.size + workers).astype(np.int32))


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 4), st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 4)]))
def test_traffic_is_that_of_the_plan(seed, rows, workers, shape):
    made = manifest(np.random.default_rng(seed), rows, workers, Layout(*shape), hosts=3)
    traffic, moved = Traffic.of(made), volume(made.plan())
    assert traffic.busiest_bytes == moved.busiest
    assert traffic.inside_bytes == moved.inside.max()


def test_few_large_messages_are_expected_to_take_what_links_take():
    # 1 GB over a link of 125 MB/s: 8 s and 6 % for headers, whatever the way; calls are thousandths of a second.
    expected = Traffic(1e9, 0.0, messages=4).expected(HostLink(125e6, 1e-4), processes=4)
    assert all(8.4 < seconds < 8.6 for seconds in expected.values())
