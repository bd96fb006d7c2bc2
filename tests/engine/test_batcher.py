"""Prompts that come one by one are completed together, exactly as a batch is."""

import asyncio
import threading

import pytest

from earl.engine.local import LocalSampler
from earl.engine.samplers import Batcher
from earl.rollout.drivers import play
from earl.trajectory import Completion, Prompt


class Slow:
    """A sampler that is busy until it is let go, and notes what it was asked for."""

    def __init__(self):
        self.let_go, self.busy = threading.Event(), threading.Event()
        self.batches, self.version, self.released = [], 0, []

    def generate(self, prompts):
        self.batches.append([prompt.session for prompt in prompts])
        self.busy.set()
        self.let_go.wait()
        if any(prompt.max_tokens == 0 for prompt in prompts):
            raise ValueError("nothing to say")
        return [Completion([prompt.session], [-1.0], [self.version], True) for prompt in prompts]

    def release(self, sessions):
        self.released += sessions

    def load(self, weights, version, probe):
        self.version = version


def prompt(session, max_tokens=1):
    return Prompt(session, [1, 2], seed=session, max_tokens=max_tokens)


async def converse(episode, sampler):
    while episode.stop is None:
        episode.receive(await sampler.complete(episode.prompt()))
    sampler.release([episode.session])
    return episode.trajectory()


def test_episodes_played_one_by_one_are_those_of_the_lockstep(small, episodes):
    policy = small()
    expected = play(episodes(policy, 12), LocalSampler(policy))

    async def all_at_once():
        sampler = Batcher(LocalSampler(policy))
        return await asyncio.gather(*(converse(episode, sampler) for episode in episodes(policy, 12)))

    for ours, theirs in zip(asyncio.run(all_at_once()), expected, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs.tolist() == pytest.approx(theirs.logprobs.tolist(), abs=1e-5)


def test_whatever_waits_goes_together_and_weights_come_between_two_batches():
    async def scene():
        inner = Slow()
        sampler = Batcher(inner)
        first = asyncio.ensure_future(sampler.complete(prompt(0)))
        await asyncio.to_thread(inner.busy.wait)
        loading = asyncio.ensure_future(asyncio.to_thread(sampler.load, {}, 7))
        while sampler._thread._work_queue.empty():  # it stands in line before what comes now
            await asyncio.sleep(0.001)
        rest = [asyncio.ensure_future(sampler.complete(prompt(number))) for number in (1, 2, 3)]
        gone = asyncio.ensure_future(sampler.complete(prompt(4)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        inner.let_go.set()
        replies = await asyncio.gather(first, *rest)
        await loading
        return inner.batches, [reply.versions for reply in replies]

    batches, versions = asyncio.run(scene())
    assert batches == [[0], [1, 2, 3]]
    assert versions == [[0], [7], [7], [7]]


def test_a_sampler_that_fails_fails_whoever_waits_for_it():
    async def scene():
        inner = Slow()
        inner.let_go.set()
        sampler = Batcher(inner)
        with pytest.raises(RuntimeError, match="nothing to say"):
            await sampler.complete(prompt(0, max_tokens=0))
        return await sampler.complete(prompt(1))  # and goes on

    assert asyncio.run(scene()).tokens == [1]
