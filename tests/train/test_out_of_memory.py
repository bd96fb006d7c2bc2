"""A process without memory, in the middle of a run: the run goes on under another layout, and its numbers are the same.

The kernel refuses what the process asks for: its budget is lowered to what it has, by a call between two stages.
"""

import pytest

from earl.benchmarks.training import trained
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.placement.ray.memory_budget import SPARE_BYTES, status_bytes, trim
from earl.recipe import build, dump
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.stopping import StopRequest
from earl.trainer import train
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("shared_ray")

RECIPE = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0}},
    "model": {"hidden": 64, "layers": 2, "heads": 4, "head_dim": 16, "intermediate": 2048},
    "rollout": {"episodes": 256, "group_size": 4},
    "algorithm": {"name": "ppo", "kl": 0.01},
    "learner": {"learning_rate": 1e-6},  # so small that rounding, which no two layouts share, decides no token
    "evaluate": {"every": 10, "opponents": ["random"], "episodes": 4, "final_episodes": 4},
    "run": {"steps": 3, "processes": 1, "checkpoint_every": 2, "keep_trajectories_every": 10},
    "selector": {"kind": "auto"},
}
PLACE = {"kind": "colocated", "dp": 2, "samplers": 2, "heartbeat_seconds": 5.0, "memory_gib": 4.0}
SPARE = 2 << 20
"""Bytes that a starved process is left with."""
WIDE = {"model": {**RECIPE["model"], "intermediate": 16_384}, "rollout": {"episodes": 32, "group_size": 4}}
"""A tensor of it takes twice what a starved process is left with, so that weights cannot be sent: 64 * 16384 * 4 bytes.
Smaller ones lie where memory has been freed before, and ask the kernel for nothing."""
BEFORE = {"preparation": "values", "update": "preparation"}
"""The stage of a rank after which it is starved, to run out in the next."""


class Famine:
    """Starves one process of a role, once, until it is laid out anew.

    Args:
        after: the role and the stage of the call behind which it comes.
        at: how many such calls are let pass, with that one.
    """

    def __init__(self, role, after, at):
        self.role, self.after, self.calls = role, after, at
        self.known = {}

    def asked(self, stage, members):
        """A call was made; what is called here comes behind it."""
        role = members[0].name.rpartition(" ")[0]
        self.known[role] = members[-1]
        if stage in ("leaving", "start"):
            for member in members:
                member.actor.__ray_call__.remote(_fed)
        if (role, stage) == self.after:
            self.calls -= 1
            if self.calls == 0:
                self.known[self.role].actor.__ray_call__.remote(_starved)


def _starved(self):
    trim()  # what is given back later would be room
    self._budget._most = status_bytes("RssAnon") - self._budget._resident + SPARE + SPARE_BYTES


def _fed(self):
    if self._budget:
        self._budget._most = 4 << 30


def finished(root, name, asked=None, **sections):
    """Trains to the end; the numbers of the run, and what was told."""
    config = build({**RECIPE, "placement": PLACE, **sections})
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, asked) as place:
        assert train(folder, config, place, Peers(), StopRequest(), None).finished
    with Store(folder.database, read_only=True) as store:
        return store.metrics(), store.events()


def assert_alike(metrics, left_alone):
    """Every step was recorded once, with the numbers of a run that nothing befell."""
    for name in ("loss", "value_loss", "kl_to_reference", "reward", "episodes"):
        steps, numbers = zip(*metrics[name], strict=True)
        assert steps == (1, 2, 3)
        assert numbers == pytest.approx([number for _, number in left_alone[name]], abs=1e-4), name


def in_one_process(root, **sections):
    """The numbers of a run that needs no other process, and that nothing befalls."""
    folder = trained(root, "alone", build({**RECIPE, "selector": {"kind": "off"}, **sections}))
    with Store(folder.database, read_only=True) as store:
        return store.metrics()


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    return in_one_process(tmp_path_factory.mktemp("runs"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_whose_players_run_out_of_memory_goes_on(tmp_path, left_alone):
    # Weights are given before the first step too, as the run begins and as it is measured.
    famine = Famine("rollout worker", ("rollout worker", "weights"), 3)
    metrics, events = finished(tmp_path, "rollout", famine.asked)
    told = {event.kind: event for event in events}
    assert "rollout worker 1 ran out of memory during rollout" in told["out_of_memory"].message
    assert "rollout: from 2 x tp1 to 1 x tp2" in told["layout"].message
    assert "recovered" not in told
    assert {count for _, count in metrics["episodes"]} == {256.0}
    assert_alike(metrics, left_alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", sampled(BEFORE, always=["update"]))  # test_learner_relayout.py has the other
def test_a_run_whose_learner_runs_out_of_memory_goes_on(tmp_path, left_alone, stage):
    # Of one minibatch and one epoch, so that nobody has learned of a batch that another one could not hold.
    famine = Famine("learner rank", ("learner rank", BEFORE[stage]), at=2)
    metrics, events = finished(tmp_path, stage, famine.asked)
    told = {event.kind: event for event in events}
    assert f"learner rank 1 ran out of memory during {stage}" in told["out_of_memory"].message
    assert "update: from dp2 tp1" in told["layout"].message
    assert told["out_of_memory"].step == told["layout"].step == 2
    assert "recovered" not in told
    assert_alike(metrics, left_alone)
    peaks = dict(metrics["memory/peak_bytes"])
    assert all(0 < peaks[step] < 4 << 30 for step in (1, 2, 3))


@pytest.fixture(scope="module")
def wide_left_alone(tmp_path_factory):
    return in_one_process(tmp_path_factory.mktemp("runs"), **WIDE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "who", "stage"),
    sampled([("rollout worker", "rollout worker 1", "rollout"), ("learner rank", "learner rank 1", "update")], every=2),
)
@pytest.mark.exhaustive
def test_a_run_that_runs_out_of_memory_while_weights_are_sent_goes_on(tmp_path, wide_left_alone, role, who, stage):
    # A rank packs a bucket of them, a sampler makes one tensor after the other, after the update of step 2.
    famine = Famine(role, ("learner rank", "update"), at=2)
    metrics, events = finished(tmp_path, stage, famine.asked, **WIDE)
    told = {event.kind: event for event in events}
    assert f"{who} ran out of memory during weights" in told["out_of_memory"].message
    assert f"{stage}: from " in told["layout"].message
    assert told["out_of_memory"].step == told["layout"].step == 2
    assert "recovered" not in told
    assert_alike(metrics, wide_left_alone)
