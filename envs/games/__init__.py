"""Two-player board games: rule tables and pure functions, and one thin environment over them."""

from earl.envs.games.base import Game
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.tictactoe import TICTACTOE

GAMES: dict[str, Game] = {game.name: game for game in (TICTACTOE, CONNECT4)}
"""The games by name."""
