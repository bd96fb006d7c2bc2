"""Several samplers as one: affinity, load, versions that agree."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.engine.router import ReplicaRoutes, Router, VersionsDiffer
from earl.rollout.prompt import Completion, Prompt


class Replica:
    """Answers with its own name; takes weights unless it is told not to."""

    def __init__(self, name):
        self.name, self.version, self.seen, self.released, self.takes = name, 0, [], [], True

    def generate(self, prompts):
        self.seen += [prompt.session for prompt in prompts]
        return [Completion([prompt.session, self.name], [0.0, 0.0], [self.version] * 2, True) for prompt in prompts]

    async def complete(self, prompt):
        await asyncio.sleep(0)
        return self.generate([prompt])[0]

    def release(self, sessions):
        self.released += sessions

    def load(self, weights, version, probe=None):
        self.version = version if self.takes else self.version

    def sleep(self):
        self.name = None

    def wake(self):
        self.name = 0


def prompt(session, tokens=8):
    return Prompt(session, [1, 2], seed=0, max_tokens=tokens)


events = st.lists(st.tuples(st.sampled_from(["enter", "leave", "release"]), st.integers(0, 12), st.integers(1, 50)))


@given(replicas=st.integers(1, 5), happened=events)
def test_an_episode_stays_and_a_new_one_goes_where_least_waits(replicas, happened):
    routes, at, open_prompts = ReplicaRoutes(replicas), {}, []
    for what, session, tokens in happened:
        before = list(routes.waiting)
        if what == "enter":
            place = routes.enter(session, tokens)
            if session in at:
                assert place == at[session]
            else:
                assert before[place] == min(before)
            at[session] = place
            open_prompts.append((place, tokens))
        elif what == "leave" and open_prompts:
            routes.leave(*open_prompts.pop(0))
        elif what == "release":
            assert routes.release(session) == at.pop(session, None)
        for replica in range(replicas):
            assert routes.waiting[replica] == sum(n for place, n in open_prompts if place == replica)


@given(replicas=st.integers(1, 5), sessions=st.integers(0, 40))
def test_new_episodes_that_are_alike_are_spread_evenly(replicas, sessions):
    routes = ReplicaRoutes(replicas)
    places = [routes.enter(session, 8) for session in range(sessions)]
    counts = [places.count(replica) for replica in range(replicas)]
    assert max(counts) - min(counts) <= 1


def test_idle_replicas_take_turns_too():
    # Nothing waits anywhere, as between two lockstep batches: episodes that are open count then.
    routes = ReplicaRoutes(3)
    places = []
    for session in range(6):
        places.append(routes.enter(session, 8))
        routes.leave(places[-1], 8)
    assert places == [0, 1, 2, 0, 1, 2]


def test_completions_come_in_order_from_where_the_episode_is():
    first, second = Replica(0), Replica(1)
    router = Router([first, second])
    for _ in range(2):
        replies = router.generate([prompt(session) for session in range(5)])
        assert [reply.tokens for reply in replies] == [[0, 0], [1, 1], [2, 0], [3, 1], [4, 0]]
    router.release([1, 4, 99])
    assert (first.released, second.released) == ([4], [1])

    async def together():
        return await asyncio.gather(*(router.complete(prompt(session)) for session in (0, 3, 2)))

    assert [reply.tokens for reply in asyncio.run(together())] == [[0, 0], [3, 1], [2, 0]]


def test_samplers_whose_versions_differ_are_refused():
    replicas = [Replica(0), Replica(1)]
    router = Router(replicas)
    router.load({}, 3)
    assert router.version == 3
    replicas[1].takes = False
    with pytest.raises(VersionsDiffer, match="versions 4, 3"):
        router.load({}, 4)
    with pytest.raises(VersionsDiffer):
        router.generate([prompt(0)])
    with pytest.raises(VersionsDiffer):
        asyncio.run(router.complete(prompt(0)))
    replicas[1].takes = True
    router.load({}, 4)
    assert router.generate([prompt(0)])[0].versions == [4, 4]


def test_a_sampler_that_fails_to_load_is_heard_of():
    class Broken(Replica):
        def load(self, weights, version, probe=None):
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        Router([Replica(0), Broken(1)]).load({}, 1)
