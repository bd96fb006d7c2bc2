"""Environments in processes of their own: the numbers are those of an embedded run, whoever is lost on the way."""

import asyncio
import os
import signal

import pytest
from ray.exceptions import RayActorError

from earl.benchmarks.placements import differences, numbers
from earl.benchmarks.training import trained
from earl.engine.samplers import VersionsDiffer
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.placement.ray.rollout_actor import RemoteSampler
from earl.recipe import build, dump
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.stopping import StopRequest
from earl.trainer import train
from earl.trajectory import Completion, Prompt

RECIPE = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0, "perfect": 1.0}},
    "agent": {"max_turn_tokens": 2},
    "model": {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "intermediate": 24},
    "warm_start": {"steps": 2, "teacher": "expert", "episodes": 16, "minibatches": 1},
    "rollout": {"episodes": 24, "group_size": 4},
    "algorithm": {"kl": 0.01},
    "evaluate": {"every": 3, "opponents": ["random"], "episodes": 6, "final_episodes": 6},
    "run": {"steps": 6, "processes": 1, "checkpoint_every": 100, "keep_trajectories_every": 100},
}
APART = {"samplers": 2, "environments": 3, "heartbeat_seconds": 5.0}


def placed(kind, **env):
    return build({**RECIPE, "env": {**RECIPE["env"], **env}, "placement": {"kind": kind, **APART}})


class Actor:
    """A sampler of this process that is lost a few times before it answers, with some version of the weights."""

    def __init__(self, version, losses=0):
        self.version, self.losses, self.asked = version, losses, []
        self.complete = type("Method", (), {"remote": staticmethod(self._complete)})

    async def _complete(self, prompt):
        self.asked.append(prompt.session)
        if len(self.asked) <= self.losses:
            raise RayActorError
        return Completion([prompt.tokens[-1]], [0.0], [self.version], True)


def test_a_lost_sampler_is_asked_again_and_for_no_session_twice():
    actors = [Actor(3), Actor(3, losses=1)]
    sampler = RemoteSampler(actors, 1, first_session=100)
    sampler.load({}, 3)
    prompts = [Prompt(session, [session, 7 + session], seed=0, max_tokens=1) for session in range(3)]
    assert [asyncio.run(sampler.complete(prompt)).tokens for prompt in prompts] == [[7], [8], [9]]
    first, *others = actors[1].asked
    assert first == 100 and len({*others}) == 3 and not {100, 101, 102} & {*others}
    assert not actors[0].asked


def test_replies_by_other_weights_than_were_given_do_not_pass():
    sampler = RemoteSampler([Actor(version=2)], 0, first_session=0)
    sampler.load({}, 3)
    with pytest.raises(VersionsDiffer, match=r"sampler 0 answers with weights of version 2 .* version 3"):
        asyncio.run(sampler.complete(Prompt(0, [1], seed=0, max_tokens=1)))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return numbers(trained(tmp_path_factory.mktemp("embedded"), "embedded", build(RECIPE)))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_environments_apart_learn_the_same(expected, tmp_path):
    apart = differences(expected, numbers(trained(tmp_path, "colocated", placed("colocated"))))
    assert max(apart["loss"], apart["reward"]) <= 1e-4, apart


class FaultInjector:
    """Strikes members at their names when environments are asked for the n-th time."""

    def __init__(self, blows):
        self.blows, self.known, self.calls, self.injected = blows, {}, {}, []

    def asked(self, stage, members):
        self.known |= {member.name: member for member in members}
        if not members[0].name.startswith("environment"):
            return
        self.calls[stage] = count = self.calls.get(stage, 0) + 1
        if blow := self.blows.pop((stage, count), None):
            name, how = blow
            os.kill(self.known[name].process, how)
            self.injected.append(name)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_lost_samplers_and_environments_cost_no_episode(expected, tmp_path):
    blows = {
        ("rollout", 1): ("sampler 0", signal.SIGKILL),
        ("rollout", 2): ("sampler 1", signal.SIGSTOP),
        ("rollout", 3): ("environment 1", signal.SIGKILL),
        ("evaluation", 2): ("sampler 1", signal.SIGKILL),
        ("weights", 3): ("environment 0", signal.SIGKILL),
    }
    config = placed("disaggregated", delay_seconds=0.02)  # so that nobody has ended when the blow falls
    injector = FaultInjector(dict(blows))
    folder = create(tmp_path, "struck", dump(config))
    with lock(folder), on_cluster(config, injector.asked) as place:
        assert train(folder, config, place, Peers(), StopRequest(), None).finished
    assert len(injector.injected) == len(blows)
    apart = differences(expected, numbers(folder))
    assert max(apart["loss"], apart["reward"]) <= 1e-4, apart
    with Store(folder.database, read_only=True) as store:
        recovered = [event.message for event in store.events() if event.kind == "recovered"]
    for name in ("sampler 0", "sampler 1", "environment 0", "environment 1"):
        assert any(message.startswith(name) for message in recovered), recovered
