"""Any environment for users of verifiers, whose environments are modules: four lines make one.

    # tictactoe_arena.py
    from earl.rollout.verifiers import environment

    Tasks, Play = environment("tictactoe", opponent="random")
    __all__ = ["Tasks", "Play"]

verifiers then knows it as `tictactoe-arena`. A task is an episode by its seed; in games for two, the seats take turns.
The environment plays the user; the trace's reward `earl` is the sum of the episode's.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import verifiers.v1 as vf

from earl.agents.parser import Unreadable
from earl.agents.parser import parser as parser_of
from earl.envs import registry
from earl.envs.base import TextEnv, checked_reset, checked_step
from earl.rollout.env_process import make
from earl.seeds import derive

LONGEST = 1 << 22
"""Characters of a text of the environment."""


class EpisodeData(vf.TaskData):
    seed: int
    seat: int


class EpisodeTask(vf.Task[EpisodeData]):
    pass


class PlayConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


@dataclass(slots=True)
class Referee:
    """Answers the replies of one episode."""

    env: TextEnv
    form: str
    retries: int
    forfeit_reward: float
    reward: float = 0.0
    ended: bool = False

    def answer(self, reply: str) -> str:
        """What the environment says to a reply. One that is not legal is answered with the rule; without a retry left
        it ends the episode and costs the forfeit."""
        try:
            action = parser_of(self.form).action(reply)
            broken = self.env.rule(action)
        except Unreadable as error:
            broken = str(error)
        if broken is not None:
            self.retries -= 1
            self.ended = self.retries < 0
            self.reward += self.forfeit_reward if self.ended else 0.0
            return broken
        observation, reward, terminated, truncated, _ = checked_step(self.env.step(action), LONGEST)
        self.reward += reward
        self.ended = terminated or truncated
        return observation


def environment(
    env: str,
    opponent: str = "",
    parser: str = "last_line",
    retries: int = 0,
    forfeit_reward: float = -1.0,
    **options: Any,
) -> tuple[type[vf.Taskset[Any, Any]], type[vf.Env[Any]]]:
    """The taskset, without end, and the environment of verifiers. `parser` is one of agent.parser, `opponent` the name
    of a scripted one, `options` are those of the environment. Raises EarlError for an unknown name."""
    seats = registry.seats(env)

    def made(seat: int) -> TextEnv:
        return make(env, options, None, **({"seat": seat, "opponent": opponent} if seats == 2 else {}))

    made(0).close()  # refuses what it does not know, as does the parser
    parser_of(parser)

    class Tasks(vf.Taskset[EpisodeTask, vf.TasksetConfig]):
        INFINITE = True

        def load(self) -> Iterator[EpisodeTask]:
            for number in count():
                seat, seed = number % seats, derive(0, "verifiers", number)
                own = made(seat)
                prompt, _ = checked_reset(own.reset(seed=seed), LONGEST)
                rules = own.instructions or None
                data = EpisodeData(name=f"{env}#{number}", prompt=prompt, system_prompt=rules, seed=seed, seat=seat)
                own.close()
                yield EpisodeTask(data, self.config.task)

    class Play(vf.Env[PlayConfig]):
        async def run(self, task: Any, agents: Any) -> None:
            referee = Referee(made(task.data.seat), parser, retries, forfeit_reward)
            try:
                await asyncio.to_thread(referee.env.reset, seed=task.data.seed)
                async with agents.player.interaction(task) as interaction:
                    segment = await interaction.turn()
                    while not segment.terminated:
                        said = await asyncio.to_thread(referee.answer, segment.last_reply)
                        if referee.ended:
                            break
                        segment = await interaction.turn(said)
                interaction.trace.record_reward("earl", referee.reward)
            finally:
                referee.env.close()

    return Tasks, Play
