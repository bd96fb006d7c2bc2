"""Drivers: play episodes against a sampler, concurrently (single prompts) or in lockstep (one batch per turn).

episode ─▶ complete(prompt) ─▶ simulated wait ─▶ environment, in a thread ─▶ complete(prompt) …
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, runtime_checkable

from earl.rollout.episode import Episode
from earl.rollout.prompt import Completion, Prompt
from earl.trajectory import Trajectory

THREADS = 32  # environments that may answer at the same time


@runtime_checkable
class Streams(Protocol):
    """A sampler that completes single prompts asynchronously."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Complete one prompt."""

    def release(self, sessions: Sequence[int]) -> None:
        """Drop the sampler's state of these episodes."""


async def _play_all(episodes: Sequence[Episode], sampler: Streams) -> list[Trajectory]:
    with ThreadPoolExecutor(THREADS, "earl-environment") as threads:
        return await asyncio.gather(*(play_one(episode, sampler, threads) for episode in episodes))


async def play_one(episode: Episode, sampler: Streams, threads: ThreadPoolExecutor) -> Trajectory:
    """Run one episode to its end; its environment answers in one of `threads`."""
    loop = asyncio.get_running_loop()
    while episode.stop is None:
        completion = await sampler.complete(episode.prompt())
        await asyncio.sleep(episode.delay())
        await loop.run_in_executor(threads, episode.receive, completion)
    sampler.release([episode.session])
    return episode.trajectory()


class Completes(Protocol):
    """A sampler that completes batches of prompts."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""

    def release(self, sessions: Sequence[int]) -> None:
        """Drop the sampler's state of these episodes."""


class Greedy:
    """A sampler that takes the most likely tokens; used in evaluation."""

    def __init__(self, sampler: Completes) -> None:
        self._sampler = sampler

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return self._sampler.generate([replace(prompt, greedy=True) for prompt in prompts])

    def release(self, sessions: Sequence[int]) -> None:
        self._sampler.release(sessions)


def play(episodes: Sequence[Episode], sampler: Completes) -> list[Trajectory]:
    """Run all episodes to their end; trajectories in the same order.
    Concurrent if the sampler takes single prompts, else in lockstep."""
    if isinstance(sampler, Streams):
        with ThreadPoolExecutor(1, "earl-rollout") as thread:  # the caller's may already run an event loop
            return thread.submit(asyncio.run, _play_all(episodes, sampler)).result()
    waiting = [episode for episode in episodes if episode.stop is None]
    while waiting:
        completions = sampler.generate([episode.prompt() for episode in waiting])
        time.sleep(max(episode.delay() for episode in waiting))
        for episode, completion in zip(waiting, completions, strict=True):
            episode.receive(completion)
        sampler.release([episode.session for episode in waiting if episode.stop is not None])
        waiting = [episode for episode in waiting if episode.stop is None]
    return [episode.trajectory() for episode in episodes]
