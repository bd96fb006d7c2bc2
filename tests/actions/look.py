"""An environment whose tool takes some time."""

import time
from random import Random

from earl.envs.tools.base import ToolEnv


class LookEnv(ToolEnv):
    instructions = "Look."
    max_turns = 3

    def look(self) -> str:
        """Look for 20 ms."""
        time.sleep(0.02)
        return "seen"

    tools = (look,)

    def task(self, rng: Random) -> str:
        return "Look."

    def score(self, answer: str) -> float:
        return 0.0

    def random_action(self, rng: Random) -> str:
        return "look()"
