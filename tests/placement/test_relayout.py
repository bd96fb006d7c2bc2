"""Samplers that are split over other processes between two steps: the same episodes, none lost, and it is mended."""

import os
import signal

import pytest

from earl.benchmarks.faults import FaultInjector, PlannedFault, _signal
from earl.benchmarks.placements import RECIPE, differences, numbers
from earl.benchmarks.training import trained
from earl.errors import EarlError
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.recipe import build, dump, override
from earl.runs.folder import create, lock
from earl.stopping import StopRequest
from earl.trainer import train

pytestmark = pytest.mark.usefixtures("shared_ray")

SHORT = ["run.steps=4", "warm_start.steps=3", "warm_start.episodes=24", "warm_start.minibatches=3"]
FOUR = [*SHORT, "placement.kind=disaggregated", "placement.samplers=4", "placement.heartbeat_seconds=5"]
SPLITS = {5: (2, 2), 6: (1, 4), 7: (4, 1)}
"""Copies and processes of each, from a step on; 4 x 1 before."""


class Switching:
    """A place whose samplers are split anew before some steps."""

    def __init__(self, place, splits):
        self.place, self.splits, self.switches = place, splits, 0
        self.mend, self.notes = place.mend, place.notes

    def open(self, saved):
        stages = self.place.open(saved)
        rollout = stages.rollout

        def switched(step, pool):
            if step in self.splits:
                self.switch(stages, step)
            return rollout(step, pool)

        stages.rollout = switched
        return stages

    def switch(self, stages, step):
        stages.relayout(*self.splits[step], step - 1)
        self.switches += 1


def switched(root, name, config, splits, asked=None, kind=Switching):
    """A run whose samplers are split anew on the way."""
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, asked) as place:
        switching = kind(place, splits)
        assert train(folder, config, switching, Peers(), StopRequest(), None).finished
    return folder, switching.switches


def assert_same(expected, found):
    apart = differences(expected, found)
    assert max(apart["loss"], apart["reward"], apart["any"]) <= 1e-4, apart


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a run in one process writes down."""
    return numbers(trained(tmp_path_factory.mktemp("alone"), "alone", build(override(RECIPE, SHORT))))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_whose_samplers_are_split_is_like_one_whose_are_not(alone, tmp_path):
    assignments = [*SHORT, "placement.kind=colocated", "placement.samplers=2", "sampler.tp=2"]
    assert_same(alone, numbers(trained(tmp_path, "split", build(override(RECIPE, assignments)))))


@pytest.mark.slow
def test_a_run_that_is_split_anew_and_loses_processes_around_that_is_like_one_that_does_not(alone, tmp_path):
    blows = [
        # Steps 4 to 7 are the first four calls of "rollout"; the switches follow after the first one.
        PlannedFault("rollout worker", "rollout", "kill", member=1, call=2, delay=0.05),  # helps the first one of two
        PlannedFault(
            "rollout worker", "rollout", "stop", member=0, call=3, delay=0.05
        ),  # says what the other three compute
        PlannedFault("rollout worker", "weights", "kill", member=2, call=4, delay=0.0),
        PlannedFault("rollout worker", "dispatch", "kill", member=3, call=5, delay=0.0),
    ]
    injector = FaultInjector([*blows], _signal)
    folder, switches = switched(tmp_path, "struck", build(override(RECIPE, FOUR)), SPLITS, injector.asked)
    assert switches >= len(SPLITS)
    assert len(injector.injected) == len(blows)
    assert_same(alone, numbers(folder))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_is_lost_while_samplers_are_split_anew_is_replaced(tmp_path):
    config = build(override(RECIPE, FOUR))
    with on_cluster(config) as place:
        stages = place.open(None)
        stages.limit(config.context.first_limit)
        stages.sync(0)
        before = stages.players.whole(stages.rollout(4))
        with pytest.raises(EarlError, match=r"sampler\.tp = 3: the model has 4 attention heads"):
            stages.relayout(1, 3, 0)
        with pytest.raises(EarlError, match=r"1 copies of the sampler x sampler\.tp 2 are 2 processes"):
            stages.relayout(1, 2, 0)
        os.kill(stages.players.group.members[3].process, signal.SIGKILL)
        stages.relayout(2, 2, 0)
        assert [kind for kind, _ in place.notes()] == ["recovered"]
        after = stages.players.whole(stages.rollout(4))
        assert len(stages.players.members) == 2
    for one, other in zip(before, after, strict=True):
        for ours, theirs in zip(one.trajectories, other.trajectories, strict=True):
            assert ours.tokens.tolist() == theirs.tokens.tolist()
            assert ours.logprobs.tolist() == pytest.approx(theirs.logprobs.tolist(), abs=1e-5)
