"""What scripted players share: a strategy names the moves it holds equally good, and chance picks one."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from earl.envs.base import TextEnv
from earl.envs.games.base import Game, State
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError

Strategy = Callable[[Game, State], tuple[int, ...]]
"""The moves that a player holds equally good, at least one while the game goes on."""


class Agent(Protocol):
    """Who acts in any environment: the interface of teachers."""

    def act(self, env: TextEnv, rng: Random) -> str:
        """A legal action for the state that `env` is in; `rng` is the only source of chance."""


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """Plays a strategy's moves, each alike, and with probability `epsilon` any legal move instead.

    It is a `Player` (an opponent on a board) and an `Agent` (who acts in the environment, a teacher).
    """

    strategy: Strategy
    epsilon: float = 0.0

    def distribution(self, game: Game, state: State) -> tuple[tuple[int, float], ...]:
        """Moves with their probabilities, which sum to 1; none has probability 0."""
        best, legal = self.strategy(game, state), game.legal(state)
        of_best, of_any = (1 - self.epsilon) / len(best), self.epsilon / len(legal)
        chances = [(move, of_any + (of_best if move in best else 0.0)) for move in legal]
        return tuple((move, chance) for move, chance in chances if chance > 0)

    def move(self, game: Game, state: State, rng: Random) -> int:
        """One move drawn from `distribution`."""
        if self.epsilon and rng.random() < self.epsilon:
            return rng.choice(game.legal(state))
        return rng.choice(self.strategy(game, state))

    def act(self, env: TextEnv, rng: Random) -> str:
        """The action for the state that a board game's environment is in."""
        if not isinstance(env, BoardGameEnv):
            raise EarlError(f"a board player cannot act in {type(env).__name__}; use it with a board game")
        return env.game.action(self.move(env.game, env.state, rng))
