"""Drivers: play episodes against a sampler, concurrently (single prompts) or in lockstep (batches), or by script.

episode ─▶ complete(prompt) ─▶ simulated wait ─▶ environment, in a thread ─▶ complete(prompt) …
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Protocol, runtime_checkable

from earl.agents.scripted.base import Agent
from earl.errors import EarlError, boundary
from earl.rollout.episode import Episode
from earl.rollout.self_play import PairedEpisodes
from earl.trajectory import Completion, Labels, Prompt, Trajectory

THREADS = 32  # environments that may answer at the same time


@runtime_checkable
class PromptSampler(Protocol):
    """A sampler that completes single prompts asynchronously."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Complete one prompt."""

    def release(self, sessions: Sequence[int]) -> None:
        """Drop the sampler's state of these episodes."""


Playable = Episode | PairedEpisodes


async def _play_all(episodes: Sequence[Playable], sampler: PromptSampler) -> None:
    with ThreadPoolExecutor(THREADS, "earl-environment") as threads:
        await asyncio.gather(*(play_one(episode, sampler, threads) for episode in episodes))


async def play_one(episode: Playable, sampler: PromptSampler, threads: ThreadPoolExecutor) -> None:
    """Run one episode to its end; its environment answers in one of `threads`."""
    loop = asyncio.get_running_loop()
    while episode.stop is None:
        completion = await sampler.complete(episode.prompt())
        await asyncio.sleep(episode.delay())
        await loop.run_in_executor(threads, episode.receive, completion)
    sampler.release(episode.sessions)


class BatchSampler(Protocol):
    """A sampler that completes batches of prompts."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""

    def release(self, sessions: Sequence[int]) -> None:
        """Drop the sampler's state of these episodes."""


class Greedy:
    """A sampler that takes the most likely tokens, of opponents too where `opponents` is set; used in evaluation."""

    def __init__(self, sampler: BatchSampler, opponents: bool = False) -> None:
        self.sampler, self._opponents = sampler, opponents

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        greedy = [replace(prompt, greedy=self._opponents or not prompt.policy) for prompt in prompts]
        return self.sampler.generate(greedy)

    def release(self, sessions: Sequence[int]) -> None:
        self.sampler.release(sessions)


def play(episodes: Sequence[Playable], sampler: BatchSampler) -> list[Trajectory]:
    """Run all episodes to their end; trajectories in the same order, of a game with both seats as far as they learn.
    Concurrent if the sampler takes single prompts, else in lockstep."""
    if isinstance(sampler, PromptSampler):
        with ThreadPoolExecutor(1, "earl-rollout") as thread:  # the caller's may already run an event loop
            thread.submit(asyncio.run, _play_all(episodes, sampler)).result()
    else:
        _play_in_lockstep(episodes, sampler)
    return [own.trajectory() for episode in episodes for own in episode.learners()]


def _play_in_lockstep(episodes: Sequence[Playable], sampler: BatchSampler) -> None:
    waiting = [episode for episode in episodes if episode.stop is None]
    with ThreadPoolExecutor(THREADS, "earl-environment") as threads:
        while waiting:
            completions = sampler.generate([episode.prompt() for episode in waiting])
            time.sleep(max(episode.delay() for episode in waiting))
            answered = []
            for episode, completion in zip(waiting, completions, strict=True):
                if isinstance(episode, Episode) and getattr(episode.env, "external", False):
                    answered.append(threads.submit(episode.receive, completion))
                else:
                    episode.receive(completion)
            for answer in answered:
                answer.result()
            sampler.release([own for episode in waiting if episode.stop is not None for own in episode.sessions])
            waiting = [episode for episode in waiting if episode.stop is None]


def demonstrate(
    episodes: Sequence[Episode], agents: Mapping[str, tuple[Agent, Agent]], noise: float
) -> tuple[list[Trajectory], list[Labels]]:
    """Play all episodes by script. Returns the trajectories, and for each the tokens of the teacher's reply by turn.

    `agents`: environment → the teacher, and the agent of the noise. Each turn's label is the teacher's action. With
    probability `noise` the other agent's is played instead, so that the student also sees, correctly labelled, the
    positions after mistakes. Raises EarlError when the teacher's reply is longer than the student's may be.
    """
    labels: list[Labels] = []
    for episode in episodes:
        rng, own = Random(episode.seed), dict[int, list[int]]()
        teacher, noisy = agents[episode.task.env]
        while episode.stop is None:
            with boundary() as fault:
                clean, played = _draw_actions(episode, teacher, noisy, noise, rng)
            if fault.message:
                episode.fail(fault.message)
                break
            own[len(episode.turns)] = _label_tokens(episode, clean)
            written = episode.chat.written(played)
            tokens = written[: episode.prompt().max_tokens]  # cut as a sampler would
            episode.receive(Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), len(tokens) == len(written)))
        labels.append(own)
    return [episode.trajectory() for episode in episodes], labels


def _draw_actions(episode: Episode, teacher: Agent, noisy: Agent, noise: float, rng: Random) -> tuple[str, str]:
    """The teacher's action and the played action. For a summary, both repeat the observation."""
    if episode.summarising:
        return episode.observation, episode.observation
    clean = episode.phrased(teacher.act(episode.env, rng))
    return clean, episode.phrased(noisy.act(episode.env, rng)) if rng.random() < noise else clean


def _label_tokens(episode: Episode, action: str) -> list[int]:
    tokens, limit = episode.chat.written(action), episode.reply_tokens
    if episode.summarising:
        return tokens[:limit]
    if len(tokens) > limit:
        fault = f"agent.max_turn_tokens is {limit}, but the teacher's reply {action!r} takes {len(tokens)} with its end"
        raise EarlError(f"{fault}; set agent.max_turn_tokens to at least {len(tokens)}")
    return tokens
