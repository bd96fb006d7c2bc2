"""Registry of the algorithms: a name is a class and settings of it, or an import string of a class of yours."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from earl.algorithms.base import Algorithm
from earl.algorithms.cispo import CISPO
from earl.algorithms.dapo import DAPO
from earl.algorithms.gigpo import GiGPO
from earl.algorithms.grpo import GRPO
from earl.algorithms.gspo import GSPO
from earl.algorithms.ppo import PPO
from earl.algorithms.rae import RAE
from earl.algorithms.reinforce_pp import ReinforcePlusPlus
from earl.algorithms.rloo import RLOO
from earl.envs.registry import is_path, plugin
from earl.errors import EarlError, unknown
from earl.recipe import explained

ALGORITHMS: dict[str, tuple[type[Algorithm], Mapping[str, Any]]] = {
    "grpo": (GRPO, {}),
    "dr_grpo": (GRPO, {"scale": "none", "aggregation": "constant"}),
    "dapo": (DAPO, {}),
    "gspo": (GSPO, {}),
    "cispo": (CISPO, {}),
    "gigpo": (GiGPO, {}),
    "rloo": (RLOO, {}),
    "reinforce++": (ReinforcePlusPlus, {}),
    "ppo": (PPO, {}),
    "rae": (RAE, {}),
}


def algorithm(name: str, /, **options: object) -> Algorithm:
    """The algorithm of a name, with settings of its own. Raises EarlError for an unknown name or option, with the
    nearest, for a value that an option cannot have, and for an import string that was not allowed."""
    kind, preset = ALGORITHMS[name] if name in ALGORITHMS else (_own(name), {})
    for option in options:
        if option not in kind.model_fields:
            raise unknown(f"option of algorithm {name}", option, kind.model_fields)
    try:
        return kind(**{**preset, **options})
    except ValidationError as error:
        raise EarlError(explained(error, "algorithm", "options")) from None


def _own(name: str) -> type[Algorithm]:
    """The class that an import string names."""
    if not is_path(name):
        raise unknown("algorithm", name, ALGORITHMS)
    found = plugin("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise EarlError(f"algorithm {name!r} is no subclass of earl.algorithms.base.Algorithm; make it one")
    return found
