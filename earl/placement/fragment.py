"""The rollout fragment: a sampler, and the episodes, demonstrations and matches that are played with it.

Every placement has one or more. Each plays its share; `Players` splits the work and joins the results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl import evaluation
from earl.agents.chat import Chat
from earl.agents.scripted.registry import agent
from earl.batch import Rows
from earl.config import Config
from earl.engine.sampler import Sampler
from earl.evaluation import Match
from earl.group import Group
from earl.matches import MatchResult
from earl.placement.demonstrations import Demonstrations, demonstrations
from earl.rollout.drivers import Greedy, play
from earl.rollout.env_process import isolation
from earl.rollout.episode import Rules
from earl.rollout.pack import num_rows, pack
from earl.rollout.tasks import EpisodeFactory, group_episodes
from earl.rollout.teacher import demonstrate
from earl.seeds import derive
from earl.trajectory import Task


def world_of(config: Config, tokenizer: Any, limit: int | None = None) -> EpisodeFactory:
    """The episodes of a recipe, for a tokenizer; `limit` replaces the recipe's first context limit."""
    agent = config.agent
    rules = Rules(**agent.model_dump(), context_limit=limit or config.context.first_limit)
    examples = [example.model_dump() for example in agent.examples]
    chat = Chat(tokenizer, agent.chat_template_kwargs, agent.system_prompt, examples)
    worlds = {
        env.name: EpisodeFactory(env.name, env.options, chat, rules, env.delay_seconds, isolation(env))
        for env in config.env.each.values()
    }
    return replace(worlds.pop(config.env.name), others=worlds)


def shown(config: Config, world: EpisodeFactory) -> Demonstrations | None:
    """What is imitated in place of a teacher, if anything. Raises EarlError as `demonstrations` does."""
    warm = config.warm_start
    return demonstrations(Path(warm.data), world.chat, world.rules) if warm.steps and warm.data else None


class RolloutFragment:
    """Plays with one copy of the policy, or with several behind one `Sampler`."""

    def __init__(self, config: Config, tokenizer: Any, sampler: Sampler) -> None:
        self.config = config
        self.world = world_of(config, tokenizer)
        self._shown = shown(config, self.world)
        self.sampler = sampler
        self.costs: Mapping[str, float] = {}  # costs of the last groups, by metric name

    def play(self, step: int, tasks: Mapping[int, Task], seed: int) -> list[Group]:
        """A group of episodes for each task; `tasks` by their number in the step."""
        size = self.config.rollout.group_size
        _waves(self.sampler)
        played = play(group_episodes(grown(self.world, self.config, step), tasks, size, seed), self.sampler)
        self.costs = _waves(self.sampler)
        return [Group(tuple(played[start : start + size])) for start in range(0, len(played), size)]

    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> tuple[Rows, NDArray[np.int64]]:
        """The teacher's rows for the tasks under a context limit of `limit`, or those of warm_start.data, and the task
        number of each, [N]."""
        if self._shown is not None:
            rows, counts = self._shown.rows([derive(seed, "data", number) for number in tasks])
            return rows, np.repeat(np.array([*tasks], np.int64), counts)
        teachers = {one.env.name: one.warm_start.teacher for one in self.config.each_env()}
        world = limited(self.world, limit).changed(lambda own: _in_sight(own, teachers[own.env]))
        episodes = [world.episode(task, derive(seed, "episode", number), number) for number, task in tasks.items()]
        agents = {env: (agent(teacher, env), agent("random", env)) for env, teacher in teachers.items()}
        played, labels = demonstrate(episodes, agents, self.config.warm_start.noise)
        order = np.repeat(np.array([*tasks], np.int64), [num_rows(trajectory) for trajectory in played])
        return pack(played, labels), order

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        return [evaluation.evaluate(self.world, Greedy(self.sampler), match) for match in matches]

    def limit(self, tokens: int) -> None:
        self.world = limited(self.world, tokens)


def limited(world: EpisodeFactory, tokens: int) -> EpisodeFactory:
    return world.changed(lambda own: replace(own, rules=own.rules.model_copy(update={"context_limit": tokens})))


def _in_sight(world: EpisodeFactory, teacher: str) -> EpisodeFactory:
    """With environments in the process of a teacher that sees their state."""
    return world if teacher == "random" else replace(world, isolation=None)


def _waves(sampler: Sampler) -> dict[str, float]:
    """The most batches of one turn since this was last asked, as a metric."""
    waves = sampler.most_waves()
    return {} if waves is None else {"sampler/waves": float(waves)}


def grown(world: EpisodeFactory, config: Config, step: int) -> EpisodeFactory:
    """The world with the options that hold at a step."""
    share, envs = config.course(step), config.env.each
    return world.changed(lambda own: replace(own, options=envs[own.env].options_at(share)))
