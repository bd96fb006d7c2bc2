"""Scripted players by name: NAME[:DEPTH][@EPSILON], for example "minimax:4" or "heuristic@0.25"; MODULE:CLASS is one of
your own, a `Player` on a board of earl, else an `Agent`; model:FOLDER is a chat model.

`player` makes opponents on a board, `agent` makes teachers for any environment.
"""

import re
from functools import cache, partial
from importlib import import_module
from typing import Any, cast

from earl.agents.scripted import arithmetic, perfect
from earl.agents.scripted.base import Agent, ScriptedPlayer, Strategy
from earl.envs import registry as environments
from earl.errors import EarlError, unknown

DEFAULT_DEPTH, MAX_DEPTH = 4, 9

STRATEGIES: dict[str, Strategy] = {
    "random": perfect.anything,
    "heuristic": perfect.heuristic,
    "perfect": perfect.perfect,
    "expert": perfect.expert,
}
"""The board players without a depth; only "minimax" has one."""

TEACHERS = {"arithmetic": arithmetic.POLICIES}
"""Of tasks, by environment; a task that is not earl's has `random` alone, where it has a `random_action`."""
WHOLE_TREE = frozenset({"perfect", "expert"})
SMALL_ENOUGH = frozenset({"tictactoe"})
MODEL = "model:"
GRAMMAR = re.compile(r"(?P<name>[^:@]*)(:(?P<depth>[^:@]*))?(@(?P<epsilon>[^:@]*))?")


@cache
def player(name: str, env: str) -> Any:
    """Make an opponent, by NAME[:DEPTH][@EPSILON]: a board player, or in the game of another library one that acts.

    The depth (for minimax only, 4 by default) is in plies; with probability epsilon the player makes a random legal
    move. Raises EarlError for an unknown name or environment, a depth or epsilon out of range, a game that is too large
    for the player, or an environment without opponents.
    """
    if environments.seats(env) == 1:
        raise EarlError(f"{env} is no game of two players; leave out the opponent {name!r}")
    if name.startswith(MODEL):
        return import_module("earl.engine.opponent").ModelOpponent(name.removeprefix(MODEL))  # torch, only where needed
    if environments.is_path(name) and not name.startswith("minimax:"):
        return _own("opponent", name, "act" if _without_board(env) else "move")
    if _without_board(env):
        return _acting("opponent", name, env)
    base, depth, epsilon = _parse(name)
    if base == "minimax":
        plies = DEFAULT_DEPTH if depth is None else _depth(name, depth)
        return ScriptedPlayer(partial(perfect.best_moves, depth=plies), epsilon)
    if base not in STRATEGIES:
        raise unknown("opponent", base, names(env))
    if depth is not None:
        raise EarlError(f"opponent {name!r}: only minimax takes a depth; write {base!r} or 'minimax:{depth}'")
    if base in WHOLE_TREE and env not in SMALL_ENOUGH:
        raise EarlError(f"opponent {name!r} needs the whole game tree, {env} is too large; use 'minimax:4'")
    return ScriptedPlayer(STRATEGIES[base], epsilon)


@cache
def agent(name: str, env: str) -> Agent:
    """Make a teacher for an environment, a board game or a task. Raises EarlError as `player` does."""
    if environments.is_path(name) and not name.startswith("minimax:"):
        return cast(Agent, _own("teacher", name, "act"))
    if environments.seats(env) == 2:
        return cast(Agent, player(name, env))
    return _acting("teacher", name, env)


def _own(kind: str, name: str, method: str) -> Any:
    made = environments.plugin(kind, name)()
    if not callable(getattr(made, method, None)):
        raise EarlError(f"{kind} {name!r} has no method {method}(); see Player and Agent in earl.agents.scripted.base")
    return made


def _acting(kind: str, name: str, env: str) -> arithmetic.ScriptedAgent:
    base, depth, epsilon = _parse(name)
    if not names(env):
        raise EarlError(f"{env} has no {kind} {name!r}: give it a method random_action(rng), or name a module:Class")
    if base not in names(env):
        raise unknown(kind, base, names(env))
    if depth is not None:
        raise EarlError(f"{kind} {name!r}: no player takes a depth in {env}; write {base!r}")
    return arithmetic.ScriptedAgent(_teachers(env)[base], epsilon)


def _without_board(env: str) -> bool:
    """Whether a game for two is that of another library, played by its own random actions."""
    return environments.adapter(env) is not None


def names(env: str) -> tuple[str, ...]:
    """The names that `agent` accepts for an environment, without depth and epsilon."""
    if environments.seats(env) == 1 or _without_board(env):
        return tuple(sorted(_teachers(env)))
    small = STRATEGIES.keys() - (frozenset() if env in SMALL_ENOUGH else WHOLE_TREE)
    return tuple(sorted({*small, "minimax"}))


def _teachers(env: str) -> dict[str, arithmetic.Policy]:
    formats: dict[str, arithmetic.Policy] = (
        {"random": arithmetic.anything} if environments.offers(env, "random_action") else {}
    )
    return TEACHERS.get(env, formats)


def _parse(name: str) -> tuple[str, str | None, float]:
    match = GRAMMAR.fullmatch(name)
    if match is None:
        raise EarlError(f"opponent {name!r} is not of the form NAME[:DEPTH][@EPSILON], such as 'minimax:4@0.25'")
    epsilon = match["epsilon"]
    return match["name"], match["depth"], 0.0 if epsilon is None else _epsilon(name, epsilon)


def _depth(name: str, text: str) -> int:
    if re.fullmatch("[0-9]{1,2}", text) and 1 <= int(text) <= MAX_DEPTH:
        return int(text)
    raise EarlError(f"opponent {name!r}: depth {text!r} is not a whole number within 1 … {MAX_DEPTH}")


def _epsilon(name: str, text: str) -> float:
    if re.fullmatch(r"[0-9]*\.?[0-9]+", text, re.ASCII) and float(text) <= 1:
        return float(text)
    raise EarlError(f"opponent {name!r}: epsilon {text!r} is not a number within 0 … 1, such as 0.25")
