"""Asynchronous training on Ray, whose processes are killed and stopped."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from earl.benchmarks.faults import FaultInjector, PlannedFault, _signal
from earl.placement import async_rollout
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.runs import checkpoint
from earl.runs.folder import lock
from earl.runs.store import Store
from earl.stopping import StopRequest
from earl.trainer import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_ray")]

BLOWS = [
    PlannedFault("rollout worker", "rollout", "kill", member=0, call=2, delay=0.05),
    PlannedFault("rollout worker", "start", "stop", member=1, call=6, delay=0.0),
    PlannedFault("learner rank", "update", "kill", member=0, call=8, delay=0.01),
    PlannedFault("rollout worker", "weights", "kill", member=1, call=9, delay=0.0),
]


@pytest.mark.exhaustive
def test_processes_of_a_cluster_that_are_killed_and_stopped_cost_no_episode(ahead_recipe, new_run, assert_sound):
    config = ahead_recipe(2, placement={"samplers": 2})
    folder, injector = new_run(config), FaultInjector([*BLOWS], _signal)
    with lock(folder), on_cluster(config, injector.asked) as place:
        assert train(folder, config, place, Peers(), StopRequest(), None).finished
    with Store(folder.database, read_only=True) as store:
        assert sum(event.kind == "recovered" for event in store.events()) >= 3
    assert_sound(folder, config)


PROGRAM = """
import sys
from pathlib import Path
from earl.recipe import build, load_toml
from earl.runs.folder import lock, open_existing
from earl.trainer import run
folder = open_existing(Path(sys.argv[1]))
with lock(folder):
    sys.exit(not run(folder, build(load_toml(folder.config))).finished)
"""


@pytest.mark.exhaustive
def test_a_killed_run_goes_on_with_what_it_had_played_ahead(ahead_recipe, new_run, assert_sound, assert_kept):
    config = ahead_recipe(2, env={"delay_seconds": 0.1})
    folder = new_run(config)
    command = [sys.executable, "-c", PROGRAM, str(folder.path)]
    training = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 300
    while 6 not in checkpoint.all_steps(folder.checkpoints):
        assert training.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    training.kill()
    training.wait()
    saved = checkpoint.load(checkpoint.latest(folder.checkpoints))
    limits, ended = async_rollout.load(saved.path)
    assert sorted(limits) == [*range(saved.step + 1, min(saved.step + 3, config.total_steps) + 1)]
    with lock(folder), on_cluster(config) as place:  # on another cluster, as the first one died with the run
        assert train(folder, config, place, Peers(), StopRequest(), None).finished
    assert_sound(folder, config)
    assert_kept(folder, ended)
