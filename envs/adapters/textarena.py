"""TextArena's games for one or two players, such as `textarena:Wordle-v0`."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import numpy as np
import textarena
from textarena.envs.registration import ENV_REGISTRY

from earl.envs.adapters.base import Adapted, factory
from earl.envs.base import MOST_TURNS, Info
from earl.errors import unknown

BRACKETED = re.compile(r"\[(?!GAME\]|Player|Moderator)[^\[\]\n]{1,24}\]")


class TextArena(Adapted):
    """An observation is what was said since the player's last turn; the game itself judges every action. TextArena
    draws from the process's generators: each environment has its own, put in their place while the game is called."""

    instructions = "Play the game as its first message explains, and write your action in the form it asks for."

    def __init__(self, name: str, seat: int = 0, opponent: Any = None, **options: Any) -> None:
        super().__init__(seat, opponent)
        self._random, self._numpy = random.getstate(), np.random.get_state()
        with self._chance_of_its_own():
            env = textarena.make(name, **options)
        while isinstance(env, textarena.Wrapper):  # they join all that was ever said; a chat keeps it anyway
            env = env.env
        self._new, self._players = env, _players(name)

    def begin(self, seed: int) -> None:
        self._random, self._numpy = Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self._game = deepcopy(self._new)  # some keep what happened in an episode
        with self._chance_of_its_own():
            self._game.reset(num_players=self._players, seed=seed)
        self._heard = ["", ""]
        self._listen()
        self.max_turns = getattr(self._game.state, "max_turns", None) or MOST_TURNS

    def apply(self, action: str) -> None:
        self._heard[self.player] = ""
        with self._chance_of_its_own():
            over, _ = self._game.step(action)
        self.over = bool(over)
        self._listen()

    def observation(self) -> str:
        if self.over:
            reason = (self._game.state.game_info or {}).get(self.seat, {}).get("reason", "")
            return "\n".join(filter(None, [self._heard[self.seat], str(reason)]))
        return self._heard[self.player]

    def total(self) -> float:
        return float((self._game.state.rewards or {}).get(self.seat, 0.0)) if self.over else 0.0

    def _info(self) -> Info:
        if self.over and self._players == 1:
            return {"role": "user", "outcome": "win" if self.total() >= 1 else "loss"}
        return super()._info()

    def random_action(self, rng: Random) -> str:
        """One of the actions in brackets that the last message shows, else a number."""
        for line in reversed(self.observation().split("\n")):
            if found := BRACKETED.findall(line):
                return str(rng.choice(found))
        return f"[{rng.randrange(10)}]"

    def _listen(self) -> None:
        """Take what the player to move is told; own words are in the chat already."""
        if not self.over:
            player, said = self._game.get_observation()
            self.player = int(player)
            own = textarena.ObservationType.PLAYER_ACTION
            texts = [text for author, text, kind in said if author != player or kind != own]
            self._heard[player] = "\n".join(filter(None, [self._heard[player], *texts]))

    @contextmanager
    def _chance_of_its_own(self) -> Iterator[None]:
        with _others_chance():
            random.setstate(self._random)
            np.random.set_state(self._numpy)
            yield
            self._random, self._numpy = random.getstate(), np.random.get_state()


@contextmanager
def _others_chance() -> Iterator[None]:
    """Put the process's generators back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@cache
def _players(name: str) -> int:
    """For how many players a game is: the number that its state takes."""
    with _others_chance():
        game = textarena.make(name)
        for players in (1, 2):
            with suppress(AssertionError):  # not for so many
                game.reset(num_players=players, seed=0)
                return players
    return 3


def names() -> list[str]:
    return [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]


def load(name: str) -> Any:
    if name not in ENV_REGISTRY:
        raise unknown("game of textarena", name, names())
    return factory(TextArena, name, _players(name))
