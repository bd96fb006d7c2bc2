"""Environments of gymnasium with text or discrete actions, such as `gymnasium:FrozenLake-v1`."""

from random import Random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from earl.envs.adapters.base import Adapted, factory
from earl.envs.base import MOST_TURNS
from earl.errors import EarlError, unknown

SOME = 8
"""Characters of a random text."""


class Gymnasium(Adapted):
    """A number is written as its digits, a text as it is; `picture` shows what the environment draws as text."""

    def __init__(self, name: str, picture: bool = False, **options: Any) -> None:
        super().__init__()
        self._picture = picture
        self._env = gymnasium.make(name, render_mode="ansi" if picture else None, **options)
        space = self._env.action_space
        if not isinstance(space, spaces.Discrete | spaces.Text):
            raise EarlError(f"{name} acts in {space}; choose an environment with Discrete or Text actions")
        self._space = space
        self._actions: tuple[str, ...] = ()
        self.instructions = "Answer with your action alone."
        if isinstance(space, spaces.Discrete):
            first, last = int(space.start), int(space.start + space.n) - 1
            self._actions = tuple(map(str, range(first, last + 1)))
            self.instructions = f"Answer with the number of your action, {first} to {last}."
        self.max_turns = (self._env.spec and self._env.spec.max_episode_steps) or MOST_TURNS

    def begin(self, seed: int) -> None:
        self._seen, _ = self._env.reset(seed=seed)

    def apply(self, action: str) -> None:
        self._seen, reward, ended, cut, _ = self._env.step(int(action) if self._actions else action)
        self._total += float(reward)
        self.over, self.truncated = bool(ended or cut), bool(cut and not ended)

    def observation(self) -> str:
        return str(self._env.render()) if self._picture else text_of(self._seen)

    def actions(self) -> tuple[str, ...]:
        return self._actions

    def random_action(self, rng: Random) -> str:
        if isinstance(self._space, spaces.Discrete):
            return rng.choice(self._actions)
        return "".join(rng.choices(sorted(self._space.character_set), k=min(SOME, self._space.max_length)))

    def close(self) -> None:
        self._env.close()


def text_of(value: Any) -> str:
    """An observation as text: fractions with four digits, the planes of a board as one letter a cell."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, dict):
        return "\n".join(f"{name}: {text_of(part)}" for name, part in value.items())
    if isinstance(value, tuple):
        return " ".join(map(text_of, value))
    array = np.asarray(value)
    if array.ndim == 3:
        letters = np.where(array.any(-1), array.argmax(-1), -1)
        return "\n".join("".join(".abcdefghijklmnopqrstuvwxyz"[min(cell, 25) + 1] for cell in row) for row in letters)
    form = ".4g" if array.dtype.kind == "f" else "d"
    rows = array.tolist() if array.ndim == 2 else [array.reshape(-1).tolist()]
    return "\n".join([" ".join([format(number, form) for number in row]) for row in rows])


def names() -> list[str]:
    return [name for name in gymnasium.registry if "/" not in name]


def load(name: str) -> Any:
    if name not in gymnasium.registry:
        raise unknown("environment of gymnasium", name, names())
    return factory(Gymnasium, name, 1)
