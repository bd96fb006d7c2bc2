"""The lockstep driver: many episodes against one sampler, one batch of completions per turn."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from earl.rollout.concurrent import Streams, play_concurrently
from earl.rollout.episode import Episode
from earl.rollout.prompt import Completion, Prompt
from earl.trajectory import Trajectory


class Completes(Protocol):
    """The part of a sampler that a driver needs."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""


class Greedy:
    """A sampler that takes the most likely tokens: how strength is measured."""

    def __init__(self, sampler: Completes) -> None:
        self._sampler = sampler

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """The most likely completion of each prompt."""
        return self._sampler.generate([replace(prompt, greedy=True) for prompt in prompts])

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""
        self._sampler.release(sessions)


def play(episodes: Sequence[Episode], sampler: Completes) -> list[Trajectory]:
    """Run all episodes to their end; their trajectories come back in the same order.

    Each at its own pace where the sampler takes single prompts, else in lockstep.
    """
    if isinstance(sampler, Streams):
        return play_concurrently(episodes, sampler)
    waiting = [episode for episode in episodes if episode.stop is None]
    while waiting:
        completions = sampler.generate([episode.prompt() for episode in waiting])
        time.sleep(max(episode.delay() for episode in waiting))
        for episode, completion in zip(waiting, completions, strict=True):
            episode.receive(completion)
        sampler.release([episode.session for episode in waiting if episode.stop is not None])
        waiting = [episode for episode in waiting if episode.stop is None]
    return [episode.trajectory() for episode in episodes]
