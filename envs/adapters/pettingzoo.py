"""PettingZoo, both ways: its games for two as text environments, such as `pettingzoo:chess_v6`, and the board games of
earl as PettingZoo AEC environments: both seats are agents, moves are numbers.

from earl.envs.adapters.pettingzoo import env
game = env("connect4")
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pettingzoo
from gymnasium import logger, spaces
from numpy.typing import NDArray
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers

from earl.envs.adapters.base import Adapted, factory
from earl.envs.adapters.gymnasium import text_of
from earl.envs.games import GAMES
from earl.envs.games.base import Game
from earl.errors import unknown

FAMILIES = ("classic", "butterfly", "atari", "sisl")
AGENTS = ("player_0", "player_1")


class PettingZoo(Adapted):
    """An observation is the board as the game draws it in text, else its planes as letters; moves are numbers."""

    instructions = "Answer with the number of your move; the numbers that are possible are listed."

    def __init__(self, name: str, seat: int = 0, opponent: Any = None, **options: Any) -> None:
        super().__init__(seat, opponent)
        module = _module(name)
        self._drawn = "ansi" in module.env(**options).metadata.get("render_modes", ())
        self._env = module.env(**options, render_mode="ansi" if self._drawn else None)
        self._game = self._env  # read without the wrappers, each of which takes time for every attribute
        while isinstance(self._game, wrappers.BaseWrapper):
            self._game = self._game.env
        self._names = list(self._env.possible_agents)

    def begin(self, seed: int) -> None:
        self._env.reset(seed=seed)
        self._look()

    def apply(self, action: str) -> None:
        self._env.step(int(action))
        self._total += float(self._game.rewards.get(self._names[self.seat], 0.0))
        self._look()

    def move_at_random(self) -> None:
        self.apply(self._moves[int(self._draw() * len(self._moves))])

    def observation(self) -> str:
        shown = self._env.render() if self._drawn else text_of(self._planes)
        return str(shown) if self.over else f"{shown}\nmoves: {' '.join(self._moves)}"

    def actions(self) -> tuple[str, ...]:
        return self._moves

    def close(self) -> None:
        self._env.close()

    def _look(self) -> None:
        """Observe once a turn: it is most of what a large game costs."""
        game = self._game
        ended, cut = any(game.terminations.values()), any(game.truncations.values())
        self.over, self.truncated = ended or cut or not game.agents, cut and not ended
        agent = self._names[self.seat] if self.over else game.agent_selection
        self.player = self._names.index(agent)
        seen = self._env.observe(agent)
        masked = isinstance(seen, dict) and "action_mask" in seen
        self._planes = seen["observation"] if masked else seen
        possible = np.flatnonzero(seen["action_mask"]).tolist() if masked else range(self._env.action_space(agent).n)
        self._moves = () if self.over else tuple(map(str, possible))


def _modules() -> dict[str, str]:
    """The games by the modules that hold them, whether or not what they need is installed."""
    folders = [Path(pettingzoo.__path__[0], family) for family in FAMILIES]
    return {path.stem: path.parent.name for folder in folders for path in folder.glob("*_v[0-9]*.py")}


def _module(name: str) -> ModuleType:
    if name not in _modules():
        raise unknown("game of pettingzoo", name, _modules())
    return import_module(f"pettingzoo.{_modules()[name]}.{name}")


def names() -> list[str]:
    return list(_modules())


def load(name: str) -> Any:
    return factory(PettingZoo, name, len(_module(name).env().possible_agents))


def env(name: str, render_mode: str | None = None) -> AECEnv:
    """A game in PettingZoo's usual wrappers: an illegal move loses, a number outside the action space raises."""
    if name not in GAMES:
        raise unknown("game", name, GAMES)
    wrapped = wrappers.TerminateIllegalWrapper(RawGame(GAMES[name], render_mode), illegal_reward=-1)
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(wrapped))


class RawGame(AECEnv):  # type: ignore[misc]  # pettingzoo has no types
    """A game whose agents observe planes and choose moves by number.

    An observation is an int8 array [rows, columns, 3]: own stones, the opponent's stones, empty cells.
    `infos[agent]["action_mask"]` is 1 for each legal move of the agent to move, else 0. A win is rewarded with 1, a
    loss with -1.
    """

    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        super().__init__()
        self.metadata = {"name": f"{game.name}_v0", "render_modes": ["ansi"], "is_parallelizable": False}
        self.game = game
        self.render_mode = render_mode
        self.possible_agents = list(AGENTS)
        self._cells = [game.stone(*place) for place in np.ndindex(*game.size)]
        self.action_spaces = {agent: spaces.Discrete(len(game.actions)) for agent in AGENTS}
        self.observation_spaces = {agent: spaces.Box(0, 1, (*game.size, 3), np.int8) for agent in AGENTS}

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(AGENTS)
        self.state_of_game = self.game.deals[0][0]
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.agent_selection = AGENTS[0]
        self.infos = {agent: {"action_mask": self._mask(agent)} for agent in AGENTS}

    def step(self, action: int | None) -> None:
        """Make a move for the agent whose turn it is; `action` is None once the game is over."""
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert action is not None, "None is no move while the game goes on"
        self._cumulative_rewards[mover] = 0.0
        self.state_of_game = self.game.play(self.state_of_game, int(action))
        self.agent_selection = AGENTS[self.state_of_game.player]
        if self.game.over(self.state_of_game):
            self.terminations = dict.fromkeys(AGENTS, True)
            winner = self.game.winner(self.state_of_game)
            if winner is not None:
                self.rewards = {AGENTS[winner]: 1.0, AGENTS[1 - winner]: -1.0}
        self.infos = {agent: {"action_mask": self._mask(agent)} for agent in AGENTS}
        self._accumulate_rewards()

    def observe(self, agent: str) -> NDArray[np.int8]:
        seat = AGENTS.index(agent)
        own, other = self.state_of_game[seat], self.state_of_game[1 - seat]
        planes = [[bool(own & cell), bool(other & cell), not (own | other) & cell] for cell in self._cells]
        return np.array(planes, dtype=np.int8).reshape(*self.game.size, 3)

    def render(self) -> str | None:
        if self.render_mode is None:
            logger.warn("render() does nothing without a render mode; make the environment with 'ansi'")
            return None
        return self.game.render(self.state_of_game)

    def _mask(self, agent: str) -> NDArray[np.int8]:
        mask = np.zeros(len(self.game.actions), dtype=np.int8)
        if agent == self.agent_selection:
            mask[list(self.game.legal(self.state_of_game))] = 1
        return mask
