"""Limits of tools that several processes divide: on Ray, and with environments in processes of their own."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from earl.actions import pool as pools
from earl.actions.pool import open_pool, pool
from earl.config import ToolsConfig
from earl.envs import registry
from earl.errors import EarlError
from earl.preflight.prompts import check_tools
from earl.recipe import build
from earl.rollout.env_process import EnvProcess, Isolation, make
from earl.trajectory import ToolCall

NAME = "tests.actions.look:LookEnv"
PLACES = {
    "embedded": {"env": {"processes": 2}, "placement": {"kind": "embedded"}, "run": {"processes": 2}},
    "colocated": {"placement": {"kind": "colocated", "samplers": 4}},
    "apart": {"placement": {"kind": "colocated", "samplers": 2, "environments": 4}},
}


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.setattr(registry, "_allowed", {NAME})
    monkeypatch.setattr(pools, "_pool", None)


def recipe(place, tools):
    tree = {"env": {"name": NAME}, **PLACES[place], "tools": tools}
    return build({**tree, "env": {**tree["env"], "name": NAME}})


def most_at_once(calls: list[ToolCall]) -> int:
    began = [call.asked + call.queue_seconds for call in calls]
    changes = [(one, 1) for one in began]
    changes += [(one + call.run_seconds - 1e-3, -1) for one, call in zip(began, calls, strict=True)]  # of two clocks
    running, most = 0, 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


@pytest.mark.slow
def test_actors_on_ray_keep_to_a_limit_together(ray):
    from earl.placement.ray.rollout_actor import EpisodePlayer

    class Player(EpisodePlayer):
        def looks(self, recipe, neighbours):
            """The cores that it has, and 12 calls that come at once."""
            self._open_pool(build(recipe), neighbours)

            def look(_):
                with pool().action("look") as admitted:
                    time.sleep(0.02)
                return admitted.record()

            with ThreadPoolExecutor(12) as threads:
                return pool().cores, list(threads.map(look, range(12)))

    config = recipe("colocated", {"at_once": {"look": 9}})  # two each, for nine are not divided by four
    actor = ray.remote(concurrency_groups={"health": 1})(Player)
    actors = [actor.options(num_cpus=0).remote() for _ in range(4)]
    told = ray.get([one.looks.remote(config.model_dump(), (number, 4)) for number, one in enumerate(actors)])
    cores, calls = zip(*told, strict=True)
    assert [most_at_once(own) for own in calls] == [2] * 4
    assert 2 <= most_at_once([call for own in calls for call in own]) <= 8
    whole = pools.own_cores()
    assert [*cores] == [whole[number::4] or [whole[number % len(whole)]] for number in range(4)]


@pytest.mark.slow
def test_processes_of_environments_have_a_part_of_the_limits_and_tell_their_calls(monkeypatch):
    processes = [EnvProcess(1 << 30, number, 2) for number in range(2)]
    turns = iter([processes[0], processes[1], processes[0], processes[1]])
    monkeypatch.setattr("earl.rollout.env_process._processes", lambda *_: turns)
    open_pool([0, 1], ToolsConfig(per_second={"look": 10.0}), 1)
    envs = [make(NAME, {}, Isolation(2, None, 1 << 30)) for _ in range(4)]

    def look_twice(env):
        env.reset(seed=1)
        return [call for _ in range(2) for call in env.step("look()")[4]["tool_calls"]]

    with ThreadPoolExecutor(4) as threads:
        calls = list(threads.map(look_twice, envs))
    assert [(call.tool, call.fault) for own in calls for call in own] == [("look", "")] * 8
    for own in (calls[0] + calls[2], calls[1] + calls[3]):  # of one process: 5 a second, so 0.6 s from first to last
        began = sorted(call.asked + call.queue_seconds for call in own)
        assert began[-1] - began[0] > 0.4  # with all 10 a second 0.3 s
    for process in processes:
        process.end()


@pytest.mark.parametrize("place", PLACES)
def test_a_limit_that_has_no_part_for_each_process_is_refused(place):
    check_tools(recipe(place, {"at_once": {"look": 4}}))
    with pytest.raises(EarlError, match="look = 3 is less than the 4 processes that share it"):
        check_tools(recipe(place, {"at_once": {"look": 3}}))


def test_environments_that_are_kept_apart_differently_cannot_divide_a_limit():
    others = [{"name": "table", "share": 0.5, "processes": 1}]
    with pytest.raises(EarlError, match="differs by environment"):
        check_tools(build({"env": {"name": NAME, "others": others}, "tools": {"at_once": {"look": 4}}}))
