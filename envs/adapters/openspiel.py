"""OpenSpiel's games for one or two players, such as `openspiel:kuhn_poker`; players of one move are taken in turns."""

from bisect import bisect
from itertools import accumulate
from typing import Any

import pyspiel

from earl.envs.adapters.base import Adapted, factory
from earl.errors import unknown
from earl.seeds import draws

CHANCE, TERMINAL = int(pyspiel.PlayerId.CHANCE), int(pyspiel.PlayerId.TERMINAL)


class OpenSpiel(Adapted):
    """Actions are OpenSpiel's own words for them, which every observation lists."""

    def __init__(self, name: str, seat: int = 0, opponent: Any = None, **parameters: Any) -> None:
        super().__init__(seat, opponent)
        self._game = pyspiel.load_game_as_turn_based(name, parameters)
        kind = self._game.get_type()
        self._board, self._known = kind.provides_observation_string, kind.provides_information_state_string
        self.max_turns = self._game.max_game_length()
        self.instructions = f"The game {kind.long_name}. Answer with one of the listed actions, exactly as written."

    def begin(self, seed: int) -> None:
        self._nature, self._state = draws(seed), self._game.new_initial_state()

    def apply(self, action: str) -> None:
        self._state.apply_action(self._numbers[self.legal.index(action)])

    def move_at_random(self) -> None:
        numbers = self._state.legal_actions()
        self._state.apply_action(numbers[int(self._draw() * len(numbers))])

    def observation(self) -> str:
        seat = self.seat if self.over else self.player
        if self._board:
            shown: str = self._state.observation_string(seat)
        else:
            shown = self._state.information_state_string(seat) if self._known else str(self._state)
        return shown if self.over else f"{shown}\nactions: {', '.join(self.legal)}"

    def total(self) -> float:
        return float(self._state.player_return(self.seat))

    def actions(self) -> tuple[str, ...]:
        self._numbers = self._state.legal_actions()
        return tuple(map(self._state.action_to_string, self._numbers))

    def _go_on(self) -> None:
        """Let chance and the opponent move while it is their turn."""
        while (player := self._state.current_player()) != self.seat and player != TERMINAL:
            self.player = player
            if player == CHANCE:
                self._chance_decides()
            else:
                self._opponent_moves()
        self.player, self.over = player, player == TERMINAL
        self.legal = () if self.over else self.actions()

    def _chance_decides(self) -> None:
        outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
        place = bisect(list(accumulate(chances)), next(self._nature))
        self._state.apply_action(outcomes[min(place, len(outcomes) - 1)])


def names() -> list[str]:
    kinds = pyspiel.registered_games()
    return [kind.short_name for kind in kinds if kind.default_loadable and kind.min_num_players <= 2]


def load(name: str) -> Any:
    if name not in names():
        raise unknown("game of openspiel", name, names())
    return factory(OpenSpiel, name, pyspiel.load_game(name).num_players())
