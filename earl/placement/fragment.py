"""The rollout fragment: a sampler, and the episodes, demonstrations and matches that are played with it.

Every placement has one or more. Each plays its share; `Players` splits the work and joins the results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    own = agent.model_dump(exclude_none=True, exclude={"chat_template_kwargs", "system_prompt", "examples"})
    rules = Rules(**own, context_limit=limit or config.context.first_limit)
    examples = [example.model_dump() for example in agent.examples]
    chat = Chat(tokenizer, agent.chat_template_kwargs, agent.system_prompt, examples)
    return EpisodeFactory(
        config.env.name, config.env.options, chat, rules, config.env.delay_seconds, isolation(config.env)
    )


class RolloutFragment:
    """Plays with one copy of the policy, or with several behind one `Sampler`."""

    def __init__(self, config: Config, tokenizer: Any, sampler: Sampler) -> None:
        self.config = config
        self.world = world_of(config, tokenizer)
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
        """The teacher's rows for the tasks under a context limit of `limit`, and the task number of each, [N]."""
        world, warm = limited(self.world, limit), self.config.warm_start
        if warm.teacher != "random":
            world = replace(world, isolation=None)  # its teacher sees the environment's state
        episodes = [world.episode(task, derive(seed, "episode", number), number) for number, task in tasks.items()]
        teacher, noisy = agent(warm.teacher, world.env), agent("random", world.env)
        played, labels = demonstrate(episodes, teacher, noisy, warm.noise)
        order = np.repeat(np.array([*tasks], np.int64), [num_rows(trajectory) for trajectory in played])
        return pack(played, labels), order

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        return [evaluation.evaluate(self.world, Greedy(self.sampler), match) for match in matches]

    def limit(self, tokens: int) -> None:
        self.world = limited(self.world, tokens)


def limited(world: EpisodeFactory, tokens: int) -> EpisodeFactory:
    return replace(world, rules=replace(world.rules, context_limit=tokens))


def _waves(sampler: Sampler) -> dict[str, float]:
    """The most batches of one turn since this was last asked, as a metric."""
    waves = sampler.most_waves()
    return {} if waves is None else {"sampler/waves": float(waves)}


def grown(world: EpisodeFactory, config: Config, step: int) -> EpisodeFactory:
    """The world with the options that hold at a step."""
    return replace(world, options=config.env.options_at(config.course(step)))
