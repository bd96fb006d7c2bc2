"""Whatever is killed, stopped or cut off in the middle of a run, its numbers are those of a run left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from earl.benchmarks.faults import RECIPE, FaultInjector, PlannedFault, _signal, episodes, finished, numbers
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.recipe import build, dump, override
from earl.runs import checkpoint
from earl.runs.folder import create, lock
from earl.runs.store import read_numbers
from earl.stopping import StopRequest
from earl.trainer import train

pytestmark = pytest.mark.usefixtures("shared_ray")

ROOT = Path(__file__).parents[2]
LOSING_HOSTS = """
import json, sys
from pathlib import Path
from earl.benchmarks import faults
faults.HOST_FAULTS = {"host lost": "kill"}
print(json.dumps(faults.hosts(Path(sys.argv[1]), number=3, settings=["run.steps=4"])))
"""
BLOWS = [
    PlannedFault("rollout worker", "rollout", "kill", member=0, call=1, delay=0.05),
    PlannedFault("learner rank", "update", "stop", member=1, call=2, delay=0.02),
    PlannedFault("rollout worker", "dispatch", "kill", member=1, call=2, delay=0.03),
    PlannedFault("rollout worker", "dispatch", "kill", member=0, call=4, delay=0.0),
    PlannedFault("learner rank", "saving", "kill", member=0, call=3, delay=0.01),
    PlannedFault("rollout worker", "weights", "stop", member=1, call=4, delay=0.0),
]


def struck(root, name, *blows):
    """A run that is struck so, and what is known of it at its end."""
    config = build(override(RECIPE, ["placement.checksums=true"]))
    injector = FaultInjector([*blows], _signal)
    folder = finished(root, name, config, injector)
    assert {*injector.injected} == {*blows}
    return folder, read_numbers(folder.database)


def recoveries(run):
    return [event.message for event in run.events if event.kind == "recovered"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The numbers of a run left alone."""
    folder, run = struck(tmp_path_factory.mktemp("calm"), "calm")
    assert recoveries(run) == []
    assert episodes(folder) == 192  # 6 steps of 32
    return numbers(folder)


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_and_stopped_ends_alike(calm, tmp_path):
    folder, run = struck(tmp_path, "struck", *BLOWS)
    assert numbers(folder) == calm
    assert episodes(folder) == 192
    # A learner that is mended begins again, and so may be struck before its worker is replaced: but none goes unseen.
    assert len(recoveries(run)) >= 3


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_rank_that_stops_while_samplers_draw_weights_from_it_is_replaced(calm, tmp_path):
    folder, run = struck(
        tmp_path,
        "drawing",
        PlannedFault("learner rank", "weights", "stop", member=0, call=1, delay=0.1),
        PlannedFault("learner rank", "weights", "stop", member=1, call=3, delay=0.1),
    )
    assert numbers(folder) == calm
    assert len(recoveries(run)) >= 1  # what was mended before the first checkpoint is forgotten with that


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rows_of_processes_that_are_killed_and_stopped_meanwhile_are_the_same_to_the_bit(calm, tmp_path):
    folder, run = struck(
        tmp_path,
        "exchanging",
        # Of a worker's calls in the stage, the first one joins the group, and each step has one more.
        PlannedFault("rollout worker", "dispatch", "kill", member=1, call=3, delay=0.0),
        PlannedFault("rollout worker", "dispatch", "stop", member=0, call=6, delay=0.0),
        PlannedFault("learner rank", "dispatch", "kill", member=1, call=9, delay=0.0),
    )
    assert numbers(folder) == calm
    events = [event.message for event in run.events if event.kind in ("dispatch", "recovered")]
    for name in ("rollout worker 1", "rollout worker 0", "learner rank"):
        assert any(name in message and "during dispatch" in message for message in events), events


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_resumed_run_is_mended_when_the_checkpoint_it_came_from_is_gone(tmp_path):
    config = build(override(RECIPE, ["run.checkpoint_every=1", "run.keep_trajectories_every=1"]))
    folder, stop = create(tmp_path, "resumed", dump(config)), StopRequest()

    def stopping(stage, members):
        stop.raised |= stage == "update" and (folder.checkpoints / "step-000002").exists()

    blows = [
        PlannedFault("learner rank", "update", "kill", member=1, call=4, delay=0.0),
        PlannedFault("rollout worker", "rollout", "kill", member=0, call=5, delay=0.0),
    ]
    injector = FaultInjector([*blows], _signal)
    with lock(folder):
        with on_cluster(config, stopping) as place:
            assert not train(folder, config, place, Peers(), stop, None).finished
        left_at = checkpoint.latest(folder.checkpoints)
        with on_cluster(config, injector.asked) as place:
            assert train(folder, config, place, Peers(), StopRequest(), None).finished
    assert injector.injected == blows
    assert not left_at.exists()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_a_run_that_loses_hosts_ends_alike(tmp_path):
    # A process of its own: Ray reads the cluster's token once, when it is imported.
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-c", LOSING_HOSTS, str(tmp_path / "runs")]
    ran = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(ran.stdout)
    # One host of a learner rank, one of a rollout worker, and a full object store.
    assert result["blows"]["all"] == 3
    assert result["runs"] == {"all": 3, "same": 3}
    assert result["recoveries"] >= 2
