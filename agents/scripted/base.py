"""The interface of scripted players: a strategy returns equally good moves, one of which is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from earl.envs.base import TextEnv
from earl.envs.games.base import Game, State
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError

Strategy = Callable[[Game, State], tuple[int, ...]]
"""The moves that a player draws from, at least one while the game goes on; one that stands twice is twice as likely."""


class Agent(Protocol):
    """The interface of teachers: acts in any environment."""

    def act(self, env: TextEnv, rng: Random) -> str:
        """A legal action for the current state of `env`; `rng` is the only source of randomness."""


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """Draws from a strategy's moves, with probability `epsilon` from all legal ones. Both a `Player` and an `Agent`."""

    strategy: Strategy
    epsilon: float = 0.0
    solves: bool = False
    """Whether it needs the whole game tree."""

    def check(self, game: Game) -> None:
        """Raises EarlError for a game that it does not play."""
        if self.solves and not game.solvable:
            size = "{} × {} cells".format(*game.size)
            raise EarlError(f"{game.name} on {size} is too large to play it perfectly; use 'alphabeta:2' or mcts")

    def distribution(self, game: Game, state: State) -> tuple[tuple[int, float], ...]:
        best, legal = self.strategy(game, state), game.legal(state)
        of_best, of_any = (1 - self.epsilon) / len(best), self.epsilon / len(legal)
        chances = [(move, of_any + of_best * best.count(move)) for move in legal]
        return tuple((move, chance) for move, chance in chances if chance > 0)

    def move(self, game: Game, state: State, rng: Random) -> int:
        if self.epsilon and rng.random() < self.epsilon:
            return rng.choice(game.legal(state))
        return rng.choice(self.strategy(game, state))

    def act(self, env: TextEnv, rng: Random) -> str:
        if not isinstance(env, BoardGameEnv):
            raise EarlError(f"a board player cannot act in {type(env).__name__}; use it with a board game")
        self.check(env.game)
        return env.game.shown(env.state)[1][self.move(env.game, env.state, rng)]


@dataclass(frozen=True, slots=True)
class ScriptedAgent:
    """An `Agent` that does what a method of the environment says, or with probability `epsilon` any legal action."""

    method: str
    epsilon: float = 0.0

    def act(self, env: TextEnv, rng: Random) -> str:
        name = "random_action" if self.epsilon and rng.random() < self.epsilon else self.method
        if not hasattr(env, name):
            raise EarlError(f"{type(env).__name__} has no {name}, so this teacher cannot act in it")
        return str(getattr(env, name)(rng))
