"""Games for two: pure functions and tables as rules, and one environment for all of them."""

from earl.envs.games.base import Game
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.mnk import TICTACTOE

GAMES: dict[str, Game] = {game.name: game for game in (TICTACTOE, CONNECT4)}
"""Those that `earl solve` and PettingZoo know by name."""
