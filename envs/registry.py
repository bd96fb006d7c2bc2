"""Environments by name. A name maps to an import string, so that an environment is imported only when it is made.

Importing this file also registers the environments of earl with gymnasium. Gymnasium 1.0 no longer loads plugins by
itself, so its users import this file or name it in the id:

    gymnasium.make("earl.envs.registry:earl/TicTacToe-v0", seat=1)
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

import gymnasium

from earl.envs.base import TextEnv
from earl.errors import EarlError, unknown

Factory = Callable[..., TextEnv]
Target = TypeVar("Target", str, Factory)

_targets: dict[str, str | Factory] = {
    "tictactoe": "earl.envs.games.env:tictactoe",
    "connect4": "earl.envs.games.env:connect4",
    "arithmetic": "earl.envs.tools.arithmetic:ArithmeticEnv",
}
_loaded: dict[str, tuple[Factory, Mapping[str, inspect.Parameter]]] = {}

GYMNASIUM_IDS = {
    "earl/TicTacToe-v0": "tictactoe",
    "earl/ConnectFour-v0": "connect4",
    "earl/Arithmetic-v0": "arithmetic",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What `earl envs show` prints about an environment."""

    name: str
    target: str
    options: dict[str, object]
    seats: int
    """2 for a game with two sides, 1 for a task."""
    max_turns: int
    instructions: str
    observation: str


def register(name: str, target: Target) -> Target:
    """Add an import string "module:attribute" or a factory, and return it. Raises EarlError if the name is taken."""
    if _targets.get(name, target) is not target:
        raise EarlError(f"environment {name!r} is registered already; choose another name")
    _targets[name] = target
    return target


def names() -> tuple[str, ...]:
    return tuple(sorted(_targets))


def make(name: str, **options: object) -> TextEnv:
    """Make a new environment. Raises EarlError for an unknown name or option, with the nearest known one."""
    factory, parameters = _load(name)
    for option in options:
        if option not in parameters:
            raise unknown(f"option of environment {name}", option, parameters)
    return factory(**options)


def seats(name: str) -> int:
    return 2 if "seat" in _load(name)[1] else 1


def spec(name: str) -> Spec:
    factory, parameters = _load(name)
    env = factory()
    observation, _ = env.reset(seed=0)
    return Spec(
        name=name,
        target=f"{factory.__module__}:{factory.__qualname__}",
        options={option: parameter.default for option, parameter in parameters.items()},
        seats=seats(name),
        max_turns=env.max_turns,
        instructions=env.instructions,
        observation=observation,
    )


def _load(name: str) -> tuple[Factory, Mapping[str, inspect.Parameter]]:
    if name not in _loaded:
        if name not in _targets:
            raise unknown("environment", name, _targets)
        target = _targets[name]
        factory = _import(name, target) if isinstance(target, str) else target
        _loaded[name] = factory, inspect.signature(factory).parameters
    return _loaded[name]


def _import(name: str, target: str) -> Factory:
    module, _, attribute = target.partition(":")
    try:
        factory: Factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        rule = 'write the target as "module:attribute" of something that can be imported'
        raise EarlError(f"environment {name!r}: cannot load {target!r} ({error}); {rule}") from error
    return factory


for gymnasium_id, named in GYMNASIUM_IDS.items():
    gymnasium.register(id=gymnasium_id, entry_point=_targets[named])
