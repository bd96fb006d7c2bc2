"""Which episodes a step plays: opponents and seats in their shares, every step alike up to chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from earl.agents.chat import Chat
from earl.agents.scripted.registry import player
from earl.config import Config
from earl.envs import registry
from earl.envs.base import TextEnv
from earl.errors import EarlError, boundary
from earl.rollout.episode import Episode, Rules
from earl.seeds import derive
from earl.trajectory import Task

EVALUATION = "evaluation"
"""Seeds derived under this word are held out: training never sees them."""


@dataclass(frozen=True, slots=True)
class EpisodeFactory:
    """Everything an episode needs that is the same for all episodes of a run."""

    env: str
    options: Mapping[str, Any]
    chat: Chat
    rules: Rules
    delay_seconds: float = 0.0
    """Median of simulated waits before the environment's answers."""

    @property
    def seats(self) -> int:
        """2 for games, 1 for tool tasks."""
        return seats(self.env)

    def episode(self, task: Task, seed: int, session: int, opponent: object = None) -> Episode:
        """A new episode of a task; `opponent` replaces the one that the task names."""
        env: Any = None
        with boundary() as fault:
            env = self.make(task, opponent)
        if fault.message:
            env = Unmade(fault.message)
        return Episode(env, self.chat, self.rules, task, seed, session, self.delay_seconds)

    def make(self, task: Task, opponent: object = None) -> TextEnv:
        """The environment of a task."""
        if self.seats == 1:
            return registry.make(self.env, **self.options)
        met = opponent if opponent is not None else opponent_of(task.opponent, self.env)
        return registry.make(self.env, seat=task.seat, opponent=met, **self.options)


class Unmade:
    """Stands for an environment that could not be made: its episode ends by that fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def reset(self, **_: object) -> None:
        """Raises EarlError."""
        raise EarlError(self._fault)


@cache
def seats(env: str) -> int:
    """How many seats an environment has."""
    return registry.seats(env)


@cache
def opponent_of(name: str, env: str) -> object:
    """The scripted player of that name; players keep no state between games."""
    return player(name, env)


@dataclass(frozen=True, slots=True)
class Draw:
    """The groups that a step learns from, before they are played."""

    step: int
    tasks: Sequence[Task]
    """Of each group, in order."""
    seed: int
    """Gives every episode its own; see `episode_seed`."""


def draw(config: Config, step: int) -> Draw:
    """What a step plays: it follows from the recipe and the step alone, so that it is known ahead of time."""
    seed = derive(config.run.seed, "rollout", step)
    tasks = draw_tasks(config.env.name, config.env.opponents, config.rollout.prompts, seed)
    return Draw(step, tasks, seed)


def draw_tasks(env: str, opponents: Mapping[str, float], count: int, seed: int) -> list[Task]:
    """`count` tasks whose opponents and seats stand in their shares, as near as whole numbers allow.

    Systematic sampling: `count` evenly spaced points, shifted together by one random offset, fall on the cells
    opponent × seat laid end to end by their shares. Over many steps every cell gets exactly its share.

    Example:
        shares {random: 1, perfect: 1}, 2 seats, 4 tasks -> each of the 4 cells once
    """
    cells = [
        (name, seat, share / seats(env))
        for name, share in (opponents or {"": 1.0}).items()
        for seat in range(seats(env))
    ]
    total = sum(share for _, _, share in cells)
    offset = derive(seed, "offset") / 2**63
    drawn, reached, index = [], 0.0, 0
    for number in range(count):
        point = (number + offset) / count * total
        while index < len(cells) - 1 and point >= reached + cells[index][2]:
            reached += cells[index][2]
            index += 1
        name, seat, _ = cells[index]
        drawn.append(Task(env, derive(seed, "task", number), seat, name))
    return drawn


def group_episodes(world: EpisodeFactory, tasks: Mapping[int, Task], size: int, seed: int) -> list[Episode]:
    """`size` episodes of every task, group after group.

    Args:
        tasks: by their number in the step, so that seeds do not depend on which process plays which.
    """
    return [
        world.episode(task, episode_seed(seed, number, member), number * size + member)
        for number, task in tasks.items()
        for member in range(size)
    ]


def episode_seed(seed: int, number: int, member: int) -> int:
    """The seed of a group's member in the step of that seed."""
    return derive(seed, "episode", number, member)
