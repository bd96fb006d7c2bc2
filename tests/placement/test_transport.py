"""Rows by either way: the same numbers, also when somebody is killed or stopped while rows are exchanged."""

import pytest

from earl.benchmarks.faults import RECIPE, FaultInjector, PlannedFault, _signal, finished, numbers
from earl.recipe import build, override
from earl.runs.store import Store

pytestmark = pytest.mark.usefixtures("shared_ray")

BLOWS = [
    # Of a worker's calls in the stage, the first one joins the group, and each step has one more.
    PlannedFault("rollout worker", "dispatch", "kill", member=1, call=3, delay=0.0),
    PlannedFault("rollout worker", "dispatch", "stop", member=0, call=6, delay=0.0),
    PlannedFault("learner rank", "dispatch", "kill", member=1, call=9, delay=0.0),
]


def run(root, way, *blows):
    config = build(override(RECIPE, [f'placement.transport="{way}"', "placement.checksums=true"]))
    injector = FaultInjector([*blows], _signal)
    folder = finished(root, way, config, injector)
    assert injector.injected == [*blows]
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
