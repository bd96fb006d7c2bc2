"""Environments by name. A name maps to an import string, so that an environment is imported only when it is made.

Names are those of earl, entry points of the group `earl.environments` that installed packages declare, those of other
libraries such as "textarena:Wordle-v0", and import strings such as "my_package.envs:Guess". An import string is code,
and a run's folder that names one may come from anywhere: it is imported only when this user has named it on a command
line before, or this process was told to.

Importing this file also registers the environments of earl with gymnasium. Gymnasium 1.0 no longer loads plugins by
itself, so its users import this file or name it in the id:

    gymnasium.make("earl.envs.registry:earl/TicTacToe-v0", seat=1)
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import gymnasium

from earl.envs.base import Plain, TextEnv
from earl.errors import EarlError, translated, unknown

Factory = Callable[..., object]
Target = TypeVar("Target", str, Factory)

_targets: dict[str, str | Factory] = {
    "tictactoe": "earl.envs.games.mnk:tictactoe",
    "connect4": "earl.envs.games.connect4:connect4",
    "gomoku": "earl.envs.games.mnk:gomoku",
    "othello": "earl.envs.games.othello:othello",
    "nim": "earl.envs.games.nim:nim",
    "kuhn": "earl.envs.games.poker:kuhn",
    "leduc": "earl.envs.games.poker:leduc",
    "bargain": "earl.envs.games.bargain:bargain",
    "words": "earl.envs.games.words:WordsEnv",
    "arithmetic": "earl.envs.tools.arithmetic:ArithmeticEnv",
    "aircraft": "earl.envs.tools.aircraft:AircraftEnv",
    "lookup": "earl.envs.tools.lookup:LookupEnv",
    "table": "earl.envs.tools.table:TableEnv",
    "code": "earl.envs.tools.code:CodeEnv",
}
_BUNDLED = frozenset(_targets)
ADAPTERS = {
    "gymnasium": "gymnasium",
    "openspiel": "pyspiel",
    "pettingzoo": "pettingzoo",
    "reasoning_gym": "reasoning_gym",
    "textarena": "textarena",
    "verifiers": "verifiers",
}
"""What is imported of libraries whose environments are named LIBRARY:NAME, each with a module of that name in
`earl.envs.adapters`."""
CHANGED = {"arithmetic": (2, 'its calculator was called as <tool_call>2+3</tool_call>, and is called as calc("2+3")')}
"""Environments whose rules are others since an edition (`env.edition`), and what changed."""
ENTRY_POINTS = "earl.environments"
PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_allowed: set[str] = set()
_remembered: set[str] = set()
_loaded: dict[str, tuple[Factory, Mapping[str, inspect.Parameter]]] = {}

_NAMES = {"tictactoe": "TicTacToe", "connect4": "ConnectFour", "kuhn": "KuhnPoker", "leduc": "LeducPoker"}
GYMNASIUM_IDS = {f"earl/{_NAMES.get(name, name.title())}-v0": name for name in _targets}


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


def register(name: str, target: Target, again: bool = False) -> Target:
    """Add an import string "module:attribute" or a factory, and return it. Raises EarlError if the name is earl's, or
    is taken and not given `again`."""
    if _targets.get(name, target) is not target and (name in _BUNDLED or not again):
        raise EarlError(f"environment {name!r} is registered already; choose another name")
    _targets[name] = target
    _loaded.pop(name, None)
    return target


def names() -> tuple[str, ...]:
    return tuple(sorted({*_targets, *_installed()}))


def make(name: str, **options: object) -> TextEnv:
    """Make a new environment. Raises EarlError for an unknown name or option, with the nearest known one, and for an
    import string that was not allowed."""
    check_options(name, options)
    env = _load(name)[0](**options)
    awaited = inspect.iscoroutinefunction(getattr(env, "step", None))
    made = env if isinstance(env, TextEnv) and not awaited else Plain(env)
    _remember_on_disk(name)
    return made


def check_options(name: str, options: Iterable[str]) -> None:
    """Raises EarlError for an unknown one, with the nearest known one."""
    parameters = _load(name)[1]
    for option in options:
        if option not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            raise unknown(f"option of environment {name}", option, parameters)


def target(name: str) -> str | None:
    """The import string by which another process can register an environment; None where it knows the name anyway."""
    own = _targets.get(name)
    if own is None or name in _BUNDLED:
        return None
    if isinstance(own, str):
        return own
    if own.__module__ == "__main__":
        fault = f"environment {name!r} stands in the script or notebook itself, which its processes cannot import"
        raise EarlError(f"{fault}; move it to a file, or leave out env.processes")
    return f"{own.__module__}:{getattr(own, '__qualname__', own)}"


def check_edition(name: str, edition: int) -> None:
    """Raises EarlError for an environment whose rules have changed since a run of that edition."""
    since, change = CHANGED.get(name, (1, ""))
    if edition < since:
        cure = "use the earl that made it, which only its report does not need, or begin a new run"
        raise EarlError(f"this run is of an earlier {name}, env.edition = {edition}: {change}; {cure}")


def seats(name: str) -> int:
    return 2 if takes(name, "seat") else 1


def takes(name: str, option: str) -> bool:
    """Whether an environment has an option of that name."""
    return option in _load(name)[1]


def schemas(name: str) -> list[Mapping[str, Any]]:
    """The JSON schemas of the tools that an environment's class names; none for a function that makes one."""
    return [one.schema for one in getattr(_load(name)[0], "known", dict)().values()]


def offers(name: str, method: str) -> bool:
    """Whether the class of an environment has a method; of a function that makes one it is not known."""
    return hasattr(_load(name)[0], method) or adapter(name) is not None


def spec(name: str) -> Spec:
    factory, parameters = _load(name)
    env = make(name)
    observation, _ = env.reset(seed=0)
    target = f"{factory.__module__}:{getattr(factory, '__qualname__', factory)}"
    options = {option: one.default for option, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    return Spec(name, target, options, seats(name), env.max_turns, env.instructions, observation)


def _load(name: str) -> tuple[Factory, Mapping[str, inspect.Parameter]]:
    if name not in _loaded:
        if library := adapter(name):
            factory = _load_adapted(library, name)
        else:
            known = {**_installed(), **_targets}
            target = known[name] if name in known else _allowed_path(name)
            factory = _import(name, target) if isinstance(target, str) else target
        _loaded[name] = factory, inspect.signature(factory).parameters
    return _loaded[name]


def adapter(name: str) -> str | None:
    """The library that an environment comes from, if it is named LIBRARY:NAME."""
    library, colon, _ = name.partition(":")
    return library if colon and library in ADAPTERS and name not in _targets else None


def offered(library: str) -> list[str]:
    """The names of a library's environments. Raises EarlError if it is not installed."""
    if library not in ADAPTERS:
        raise unknown("library", library, ADAPTERS)
    return [f"{library}:{name}" for name in sorted(_adapter_module(library).names())]


def _load_adapted(library: str, name: str) -> Factory:
    if library == "verifiers":
        _check_allowed(name)  # it imports the package of that name
    module = _adapter_module(library)
    cure = "; install what it imports"
    with translated(lambda fault: f"environment {name!r}: {fault}" + cure * ("No module named" in fault)):
        factory: Factory = module.load(name.partition(":")[2])
    return factory


def _adapter_module(library: str) -> Any:
    try:
        return import_module(f"earl.envs.adapters.{library}")
    except ImportError as error:
        raise EarlError(f"{library} cannot be imported ({error}); pip install 'earl[{library}]'") from error


def is_path(name: str) -> bool:
    """Whether a name is an import string, "module:attribute", or else names code to be imported."""
    return PATH.fullmatch(name) is not None and name not in _targets and adapter(name) in (None, "verifiers")


def allow(*names: str) -> None:
    """Let this process import what these import strings name."""
    _allowed.update(names)


def remember(name: str) -> None:
    """Let this user's processes import what an import string names, which the user has just named, from the first time
    on that it could be imported."""
    if is_path(name):
        allow(name)
        _remembered.add(name)


def _remember_on_disk(name: str) -> None:
    if name not in _remembered or name in _remembered_on_disk():
        return
    path = _allowed_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def _remembered_on_disk() -> list[str]:
    path = _allowed_file()
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _allowed_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "earl" / "environments"


@cache
def _installed() -> Mapping[str, str]:
    """Entry points: name -> import string."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


@cache
def plugin(kind: str, name: str) -> Any:
    """What an import string names: a parser, a teacher, an opponent. Raises EarlError where it is not allowed."""
    found = _import(name, _allowed_path(name), kind)
    _remember_on_disk(name)
    return found


def _allowed_path(name: str) -> str:
    """The import string that a name is. Raises EarlError if it is none, or is not allowed."""
    if not is_path(name):
        raise unknown("environment", name, names())
    _check_allowed(name)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # as with `python -m`; last, so that nothing installed is hidden
    return name


def _check_allowed(name: str) -> None:
    if name not in _allowed and name not in _remembered_on_disk():
        cure = f"where you trust it: earl envs check {name}, or for another part of a recipe name it with --set"
        raise EarlError(
            f"{name!r} is code that a recipe names, and you never named it yourself; look at it, and {cure}"
        )


def _import(name: str, target: str, kind: str = "environment") -> Factory:
    module, _, attribute = target.partition(":")
    rule = 'write the target as "module:attribute" of a class or function that can be imported here'
    with translated(lambda fault: f"{kind} {name!r}: cannot load {target!r} ({fault}); {rule}"):
        factory: Factory = getattr(import_module(module), attribute)
        inspect.signature(factory)
    return factory


for gymnasium_id, named in GYMNASIUM_IDS.items():
    gymnasium.register(id=gymnasium_id, entry_point=str(_targets[named]))
