"""Several samplers as one: affinity, load."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.engine.samplers import Router
from earl.trajectory import Completion, Prompt


class Replica:
    """Answers with its own name."""

    def __init__(self, name):
        self.name, self.version, self.seen, self.released = name, 0, [], []

    async def complete(self, prompt):
        self.seen.append(prompt.session)
        await asyncio.sleep(0)
        return Completion([prompt.session, self.name], [0.0, 0.0], [self.version] * 2, True)

    def release(self, sessions):
        self.released += sessions

    def load(self, weights, version, probe=None):
        self.version = version


def prompt(session, tokens=8):
    return Prompt(session, [1, 2], seed=0, max_tokens=tokens)


def entered(router, replicas, session, tokens):
    """Where a prompt waits now, and its unfinished call."""
    before = [len(replica.seen) for replica in replicas]
    asked = router.complete(prompt(session, tokens))
    asked.send(None)
    return next(n for n, replica in enumerate(replicas) if len(replica.seen) > before[n]), asked


def left(asked):
    with pytest.raises(StopIteration):
        asked.send(None)


events = st.lists(st.tuples(st.sampled_from(["enter", "leave", "release"]), st.integers(0, 12), st.integers(1, 50)))


@given(count=st.integers(1, 5), happened=events)
def test_an_episode_stays_and_a_new_one_goes_where_least_waits(count, happened):
    replicas = [Replica(number) for number in range(count)]
    router, at, waiting, open_prompts = Router(replicas), {}, [0] * count, []
    for what, session, tokens in happened:
        if what == "enter":
            place, asked = entered(router, replicas, session, tokens)
            assert place == at[session] if session in at else waiting[place] == min(waiting)
            at[session] = place
            waiting[place] += tokens
            open_prompts.append((asked, place, tokens))
        elif what == "leave" and open_prompts:
            asked, place, tokens = open_prompts.pop(0)
            left(asked)
            waiting[place] -= tokens
        elif what == "release":
            router.release([session])
            place = at.pop(session, None)
            assert [replica.name for replica in replicas if session in replica.released] == [place] * (
                place is not None
            )
            for replica in replicas:
                replica.released.clear()


@given(count=st.integers(1, 5), sessions=st.integers(0, 40))
def test_new_episodes_that_are_alike_are_spread_evenly(count, sessions):
    replicas = [Replica(number) for number in range(count)]
    router = Router(replicas)
    asked = [entered(router, replicas, session, 8) for session in range(sessions)]
    counts = [sum(place == replica for place, _ in asked) for replica in range(count)]
    assert max(counts) - min(counts) <= 1
    for _, open_prompt in asked:
        left(open_prompt)


def test_idle_replicas_take_turns_too():
    # Nothing waits anywhere, as between two lockstep batches: episodes that are open count then.
    replicas = [Replica(number) for number in range(3)]
    router, places = Router(replicas), []
    for session in range(6):
        place, asked = entered(router, replicas, session, 8)
        places.append(place)
        left(asked)
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


def test_a_sampler_that_fails_to_load_is_heard_of():
    class Broken(Replica):
        def load(self, weights, version, probe=None):
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        Router([Replica(0), Broken(1)]).load({}, 1)
