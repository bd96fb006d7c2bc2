"""The tasks of reasoning_gym, such as `reasoning_gym:chain_sum`: one question, one answer, a score from 0 to 1."""

from random import Random
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from earl.envs.adapters.base import factory
from earl.envs.base import ForeignEnv, Info
from earl.errors import unknown


class ReasoningGym(ForeignEnv):
    """The reward is the score; a win is a score of 1."""

    max_turns = 1
    instructions = "Solve the task. Answer with the result alone."

    def __init__(self, name: str, **options: Any) -> None:
        self._name, self._options = name, options
        reasoning_gym.create_dataset(name, seed=0, size=1, **options)  # refuses what it does not know

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        del options  # there is no opponent
        own = Random().getrandbits(31) if seed is None else seed & 0x7FFFFFFF
        self._tasks = reasoning_gym.create_dataset(self._name, seed=own, size=1, **self._options)
        self._task = self._tasks[0]
        return self._task["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        score = float(self._tasks.score_answer(action, self._task))
        return f"score {score:g}", score, True, False, {"outcome": "win" if score >= 1 else "loss"}

    def random_action(self, rng: Random) -> str:
        return str(rng.randint(-99, 99))


def names() -> list[str]:
    return list(DATASETS)


def load(name: str) -> Any:
    if name not in DATASETS:
        raise unknown("task of reasoning_gym", name, names())
    return factory(ReasoningGym, name, 1)
