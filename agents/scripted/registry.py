"""Scripted players by name: NAME[:EFFORT][@EPSILON], for example "alphabeta:4", "mcts:200" or "heuristic@0.25";
MODULE:CLASS is one of your own, a `Player` on a board of earl, else an `Agent`; model:FOLDER is a chat model.

`player` makes opponents on a board, `agent` makes teachers for any environment.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, cast

from earl.agents.scripted import equilibrium, mcts, perfect
from earl.agents.scripted.base import Agent, ScriptedAgent, ScriptedPlayer, Strategy
from earl.envs import registry as environments
from earl.envs.games import nim
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError, unknown


@dataclass(frozen=True, slots=True)
class Search:
    """A player whose name says how much it searches, as a whole number within 1 … `most`."""

    unit: str
    default: int
    most: int
    make: Callable[[int, float], ScriptedPlayer]
    """A player of that effort and epsilon."""


SEARCHES = {
    "alphabeta": Search("depth", 4, 9, lambda plies, e: ScriptedPlayer(partial(perfect.best_moves, depth=plies), e)),
    "mcts": Search("number of simulations", 200, 100_000, mcts.player),
}

STRATEGIES: dict[str, Strategy] = {"random": perfect.anything, "heuristic": perfect.heuristic}
"""What plays on every board, beside the searches; random moves play every game."""
EXPLOITER = "exploiter"
"""Makes the moves of a game that the policy lost, and random ones where that is left; EXPLOITER:MOVES, with spaces
between them, names the game, and is given by the run."""
SELF = "self"
"""The opponent that is the policy itself: it learns from both seats."""
AFTER = f"{SELF}:"
"""Begins the names of the same opponent in games that begin after some moves, such as "self:1 5 9"."""
RUN = "run:"
"""Begins the names of opponents that are checkpoints, such as run:tictactoe-1@200."""
PAST = "past"
"""The opponent that stands for a pool of the run's own checkpoints, see `earl.rollout.opponents`."""
ANY = "any"
"""Opponent of exact evaluation that may play every legal move; its fractions are of leaves."""

EXACT: dict[str, dict[str, Strategy]] = {
    "perfect": {
        "tictactoe": perfect.perfect,
        "connect4": perfect.soonest,
        "gomoku": perfect.deepest,
        "othello": perfect.deepest,
        "nim": nim.best_moves,
        "bargain": perfect.subgame_perfect,
        "kuhn": perfect.anything,  # the legal moves, of which an equilibrium says how likely each is
        "leduc": perfect.anything,
    },
    "expert": {"tictactoe": perfect.expert, "connect4": perfect.practical},
}
"""What plays in solved games, by environment."""
MIXED = ("kuhn", "leduc")
"""Games in which perfect play is a lottery over moves."""

FORMER = {"minimax": "alphabeta"}
"""What earlier recipes and runs call a player. Draws are derived from names, so these stand in a run as they were."""

BOARD_PLAYERS = (*STRATEGIES, *SEARCHES, *EXACT)

TEACHERS = {"random": "random_action", "solver": "solve"}
"""Of tasks: the method of an environment, where it has it, which says what they do."""
MODEL = "model:"
GRAMMAR = re.compile(r"(?P<name>[^:@]*)(:(?P<effort>[^:@]*))?(@(?P<epsilon>[^:@]*))?")


@cache
def player(name: str, env: str) -> Any:
    """Make an opponent, by NAME[:EFFORT][@EPSILON]: a board player, or in the game of another library one that acts.

    The effort of alphabeta is its depth in plies (4 by default), that of mcts its simulations (200); with probability
    epsilon the player makes a random legal move. Raises EarlError for an unknown name or environment, an effort or
    epsilon out of range, a game that is not solved for the player, or an environment without opponents.
    """
    if environments.seats(env) == 1:
        raise EarlError(f"{env} is no game of two players; leave out the opponent {name!r}")
    if name.startswith(MODEL):
        return import_module("earl.engine.opponent").ModelOpponent(name.removeprefix(MODEL))  # torch, only where needed
    if is_own(name):
        return _make_plugin("opponent", name, "act" if _is_foreign(env) else "move")
    if _is_foreign(env):
        return _scripted_agent("opponent", name, env)
    base, effort, epsilon = _parse(name)
    if base not in ("random", EXPLOITER) and base not in names(env):  # these two play everywhere
        raise unknown("opponent", base, names(env))
    if base == EXPLOITER:
        return ScriptedPlayer(partial(perfect.along, line=tuple((effort or "").split())), epsilon)
    if base in SEARCHES:
        return SEARCHES[base].make(_effort(name, effort, SEARCHES[base]), epsilon)
    if effort is not None:
        searches = " and ".join(SEARCHES)
        raise EarlError(f"opponent {name!r}: only {searches} take a number; write {base!r} or 'alphabeta:{effort}'")
    if base == "perfect" and env in MIXED:
        return equilibrium.player(epsilon)
    strategy = EXACT[base][env] if base in EXACT else STRATEGIES[base]
    return ScriptedPlayer(strategy, epsilon, solves=base in EXACT)


def _suits_search(env: str) -> bool:
    """Whether players that search the whole state suit a game: nothing is hidden, and it is zero-sum."""
    made = environments.make(env)
    return not isinstance(made, BoardGameEnv) or made.game.promise is not None


@cache
def agent(name: str, env: str) -> Agent:
    """Make a teacher for an environment, a board game or a task. Raises EarlError as `player` does."""
    if is_own(name):
        return cast(Agent, _make_plugin("teacher", name, "act"))
    if environments.seats(env) == 2:
        return cast(Agent, player(name, env))
    return _scripted_agent("teacher", name, env)


def is_policy(opponent: str) -> bool:
    return opponent == PAST or is_self(opponent) or opponent.startswith(RUN)


def is_self(opponent: str) -> bool:
    return opponent == SELF or opponent.startswith(AFTER)


def is_own(name: str) -> bool:
    """Whether a player is a class by its path."""
    return environments.is_path(name) and name.partition(":")[0] not in (*SEARCHES, *FORMER)


def _make_plugin(kind: str, name: str, method: str) -> Any:
    made = environments.plugin(kind, name)()
    if not callable(getattr(made, method, None)):
        raise EarlError(f"{kind} {name!r} has no method {method}(); see Player and Agent in earl.agents.scripted.base")
    return made


def _scripted_agent(kind: str, name: str, env: str) -> ScriptedAgent:
    base, effort, epsilon = _parse(name)
    if not names(env):
        raise EarlError(f"{env} has no {kind} {name!r}: give it a method random_action(rng), or name a module:Class")
    if base not in names(env):
        raise unknown(kind, base, names(env))
    if effort is not None:
        raise EarlError(f"{kind} {name!r}: no player takes a depth in {env}; write {base!r}")
    return ScriptedAgent(TEACHERS[base], epsilon)


def _is_foreign(env: str) -> bool:
    """Whether a game for two is that of another library, played by its own random actions."""
    return environments.adapter(env) is not None


def names(env: str) -> tuple[str, ...]:
    """The names that `agent` accepts for an environment, without effort and epsilon."""
    if environments.seats(env) == 1 or _is_foreign(env):  # another library's offers random actions alone
        known = ["random"] if _is_foreign(env) else TEACHERS
        return tuple(sorted(name for name in known if environments.offers(env, TEACHERS[name])))
    searched = (*STRATEGIES, *SEARCHES) if _suits_search(env) else ("random",)
    return tuple(sorted([*searched, *(name for name, games in EXACT.items() if env in games)]))


def _parse(name: str) -> tuple[str, str | None, float]:
    match = GRAMMAR.fullmatch(name)
    if match is None:
        raise EarlError(f"opponent {name!r} is not of the form NAME[:EFFORT][@EPSILON], such as 'alphabeta:4@0.25'")
    epsilon = match["epsilon"]
    base = FORMER.get(match["name"], match["name"])
    return base, match["effort"], 0.0 if epsilon is None else _epsilon(name, epsilon)


def _effort(name: str, text: str | None, search: Search) -> int:
    if text is None:
        return search.default
    if re.fullmatch("[0-9]{1,6}", text) and 1 <= int(text) <= search.most:
        return int(text)
    raise EarlError(f"opponent {name!r}: {search.unit} {text!r} is not a whole number within 1 … {search.most}")


def _epsilon(name: str, text: str) -> float:
    if re.fullmatch(r"[0-9]*\.?[0-9]+", text, re.ASCII) and float(text) <= 1:
        return float(text)
    raise EarlError(f"opponent {name!r}: epsilon {text!r} is not a number within 0 … 1, such as 0.25")
