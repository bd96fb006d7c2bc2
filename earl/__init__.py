"""earl trains language-model agents by reinforcement learning on multi-turn games and tool tasks.

The names below are for Python; `earl.api` says what each does. Each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earl.api import Run, evaluate, load, plan, play, report, resume, train
    from earl.envs.base import TextEnv
    from earl.envs.registry import make, register
    from earl.errors import EarlError
    from earl.matches import MatchResult

__version__ = "0.1.0"
__all__ = ["EarlError", "MatchResult", "Run", "TextEnv", "evaluate", "load", "make", "plan", "play", "register"]
__all__ += ["report", "resume", "train"]
_HOMES = {"EarlError": "errors", "MatchResult": "matches", "TextEnv": "envs.base"}
_HOMES |= dict.fromkeys(("make", "register"), "envs.registry")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'earl' has no attribute {name!r}")
    return getattr(import_module(f"earl.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
