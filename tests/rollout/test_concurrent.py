"""The concurrent driver against the lockstep driver; simulated waits."""

import asyncio
import threading
from statistics import median

import pytest

from earl.rollout.drivers import play


def replies():
    return ("1", "2", "3"), ("9",), ("1", "8"), ("1", "fail")


@pytest.fixture
def streaming(script):
    """A sampler that completes prompts one by one, those of low sessions last."""

    class Streaming(script):
        async def complete(self, prompt):
            await asyncio.sleep(0.01 * (4 - prompt.session))
            return self.answer(prompt)

        def generate(self, prompts):
            raise AssertionError("not in lockstep")

    return Streaming


def facts(trajectory):
    return trajectory.tokens.tolist(), trajectory.versions.tolist(), trajectory.stop, trajectory.reward


def test_the_same_completions_give_the_same_trajectories_in_the_same_order(episode, script, streaming):
    lockstep = play([episode(session) for session in range(4)], script(*replies()))
    sampler = streaming(*replies())
    concurrent = play([episode(session) for session in range(4)], sampler)
    assert [facts(t) for t in concurrent] == [facts(t) for t in lockstep]
    assert sorted(sampler.released) == [0, 1, 2, 3]
    assert sampler.released[-1] == 0  # it answered last


def test_an_environment_that_waits_does_not_keep_others_waiting(episode, streaming, counting):
    # The first environment answers only after the second has: in one thread this would never end.
    first = threading.Event()

    class Waits(counting):
        def step(self, action):
            assert first.wait(timeout=30)
            return super().step(action)

    class Frees(counting):
        def step(self, action):
            first.set()
            return super().step(action)

    episodes = [episode(0, env=Waits(goal=1)), episode(1, env=Frees(goal=1))]
    assert [t.reward for t in play(episodes, streaming(("1",), ("1",)))] == [0.25, 0.25]


def test_a_sampler_that_fails_is_heard_of(episode, streaming):
    class Broken(streaming):
        async def complete(self, prompt):
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        play([episode(0), episode(1)], Broken())


def test_it_may_be_called_where_an_event_loop_runs(episode, streaming):
    async def called():
        return play([episode(0)], streaming(("9",)))

    assert len(asyncio.run(called())) == 1


def test_waits_have_the_median_that_was_asked_for_and_a_heavy_tail(episode):
    waits = sorted(episode(seed=seed, delay_seconds=0.5).delay() for seed in range(4000))
    assert median(waits) == pytest.approx(0.5, rel=0.1)
    # Log-normal with sigma 1.25: the 99th of a hundred is exp(2.33 × 1.25) = 18.4 medians.
    assert waits[3960] == pytest.approx(0.5 * 18.4, rel=0.25)
    assert episode(seed=3, delay_seconds=0.5).delay() == episode(seed=3, delay_seconds=0.5).delay()
    assert episode(seed=3).delay() == 0.0


@pytest.mark.parametrize("kind", ["lockstep", "concurrent"])
def test_drivers_wait_and_play_the_same(episode, script, streaming, kind, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("earl.rollout.drivers.asyncio.sleep", sleep)
    monkeypatch.setattr("earl.rollout.drivers.time.sleep", slept.append)
    sampler = {"lockstep": script, "concurrent": streaming}[kind]
    quick = play([episode(session) for session in range(4)], script(*replies()))
    slept.clear()
    slow = play([episode(session, delay_seconds=2.0) for session in range(4)], sampler(*replies()))
    assert [facts(t) for t in slow] == [facts(t) for t in quick]
    waits = sorted(seconds for seconds in slept if seconds > 0.05)
    # 8 replies in all: 3 rounds in lockstep; the streaming script's own naps are shorter than 0.05 s.
    assert len(waits) == {"lockstep": 3, "concurrent": 8}[kind]
