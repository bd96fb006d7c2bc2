"""OpenSpiel's games for one or two players, such as `openspiel:kuhn_poker`; players of one move are taken in turns."""

from random import Random
from typing import Any

import pyspiel

from earl.envs.adapters.base import Adapted, factory
from earl.errors import unknown


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
        self._nature = Random(seed)
        self._state = self._game.new_initial_state()
        self._settle()

    def apply(self, action: str) -> None:
        self._state.apply_action(self._moves()[action])
        self._settle()

    def move_at_random(self, rng: Random) -> None:
        self._state.apply_action(rng.choice(self._state.legal_actions()))
        self._settle()

    def observation(self) -> str:
        seat = self.seat if self.over() else self.player()
        if self._board:
            shown = self._state.observation_string(seat)
        else:
            shown = self._state.information_state_string(seat) if self._known else str(self._state)
        return shown if self.over() else f"{shown}\nactions: {', '.join(self._moves())}"

    def total(self) -> float:
        return float(self._state.returns()[self.seat])

    def over(self) -> bool:
        return self._over

    def player(self) -> int:
        return int(self._state.current_player())

    def actions(self) -> tuple[str, ...]:
        return tuple(self._moves())

    def _settle(self) -> None:
        """Draw what chance decides."""
        self._named: dict[str, int] = {}
        while self._state.is_chance_node():
            outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(self._nature.choices(outcomes, chances)[0])
        self._over = bool(self._state.is_terminal())

    def _moves(self) -> dict[str, int]:
        """The actions of the player to move, by name."""
        if not self._named and not self.over():
            player, name = self._state.current_player(), self._state.action_to_string
            self._named = {name(player, action): action for action in self._state.legal_actions()}
        return self._named


def names() -> list[str]:
    kinds = pyspiel.registered_games()
    return [kind.short_name for kind in kinds if kind.default_loadable and kind.min_num_players <= 2]


def load(name: str) -> Any:
    if name not in names():
        raise unknown("game of openspiel", name, names())
    return factory(OpenSpiel, name, pyspiel.load_game(name).num_players())
