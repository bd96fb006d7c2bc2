"""Registry of the algorithms by name."""

from earl.algorithms.base import Algorithm
from earl.algorithms.grpo import GRPO
from earl.algorithms.ppo import PPO
from earl.algorithms.rae import RAE
from earl.algorithms.reinforce_pp import ReinforcePlusPlus
from earl.algorithms.rloo import RLOO
from earl.errors import unknown

ALGORITHMS: dict[str, type[Algorithm]] = {
    "grpo": GRPO,
    "rloo": RLOO,
    "reinforce++": ReinforcePlusPlus,
    "ppo": PPO,
    "rae": RAE,
}


def algorithm(name: str) -> Algorithm:
    """The named algorithm. Raises EarlError with the nearest name when it is unknown."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]()
