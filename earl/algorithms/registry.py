"""Registry of the algorithms: a name is a class and settings of it, or an import string of a class of yours."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from earl.envs.registry import is_path, plugin
from earl.errors import EarlError, unknown
from earl.recipe import explained

if TYPE_CHECKING:
    from earl.algorithms.base import Algorithm
    from earl.config import Config

ALGORITHMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("earl.algorithms.grpo:GRPO", {}),
    "dr_grpo": ("earl.algorithms.grpo:GRPO", {"scale": "none", "aggregation": "constant"}),
    "dapo": ("earl.algorithms.dapo:DAPO", {}),
    "gspo": ("earl.algorithms.gspo:GSPO", {}),
    "cispo": ("earl.algorithms.cispo:CISPO", {}),
    "gigpo": ("earl.algorithms.gigpo:GiGPO", {}),
    "rloo": ("earl.algorithms.rloo:RLOO", {}),
    "reinforce++": ("earl.algorithms.reinforce_pp:ReinforcePlusPlus", {}),
    "ppo": ("earl.algorithms.ppo:PPO", {}),
    "rae": ("earl.algorithms.rae:RAE", {}),
}
"""Import strings, so that an unknown name is refused without torch."""


def algorithm(name: str, /, **options: object) -> "Algorithm":
    """The algorithm of a name, with settings of its own. Raises EarlError for an unknown name or option, with the
    nearest, for a value that an option cannot have, and for an import string that was not allowed."""
    kind, preset = _class_of(name)
    for option in options:
        if option not in kind.model_fields:
            refused = unknown(f"option of algorithm {name}", option, kind.model_fields)
            raise EarlError(f"{refused}; what a recipe sets for another algorithm goes by --set algorithm.options={{}}")
    try:
        return kind(**{**preset, **options})
    except ValidationError as error:
        raise EarlError(explained(error, "algorithm", "options")) from None


def algorithm_of(config: "Config") -> "Algorithm":
    """The algorithm of a recipe."""
    own = algorithm(config.algorithm.name, **config.algorithm.options)
    if "constant_tokens" in own.model_fields_set:
        return own
    a_turn = config.agent.history == "board_only"
    longest = config.agent.max_turn_tokens if a_turn else config.context.first_limit
    return own.model_copy(update={"constant_tokens": longest})


def _class_of(name: str) -> "tuple[type[Algorithm], Mapping[str, Any]]":
    if name not in ALGORITHMS:
        return _own(name), {}
    path, preset = ALGORITHMS[name]
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute), preset


def _own(name: str) -> "type[Algorithm]":
    """The class that an import string names."""
    if not is_path(name):
        raise unknown("algorithm", name, ALGORITHMS)

    from earl.algorithms.base import Algorithm

    found = plugin("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise EarlError(f"algorithm {name!r} is no subclass of earl.algorithms.base.Algorithm; make it one")
    missing = sorted(found.__abstractmethods__)
    if found.advantages is Algorithm.advantages and found.episode_advantages is Algorithm.episode_advantages:
        missing.append("episode_advantages or advantages")
    if missing:
        raise EarlError(f"algorithm {name!r} does not define {' and '.join(missing)}; add it")
    return found
