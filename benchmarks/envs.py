"""How fast earl's games step, beside the same games of PettingZoo, TextArena and OpenSpiel, on one core."""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count
from random import Random
from typing import Any

from earl.benchmarks.repeats import grouped, in_turns, interval
from earl.envs import registry
from earl.envs.adapters.gymnasium import text_of

SECONDS = 0.25
"""Of processor time, of one repeat."""
Episode = Callable[[int, Random], int]
"""Plays a seed's episode by random legal moves; returns the turns of the first seat, which reads a text before each."""

PAIRS: tuple[tuple[str, dict[str, object], str, str], ...] = (
    ("tictactoe", {}, "pettingzoo", "tictactoe_v3"),
    ("connect4", {}, "pettingzoo", "connect_four_v3"),
    ("leduc", {}, "pettingzoo", "leduc_holdem_v4"),
    ("tictactoe", {}, "textarena", "TicTacToe-v0"),
    ("connect4", {}, "textarena", "ConnectFour-v0"),
    ("othello", {"size": 8}, "textarena", "Othello-v0"),
    ("nim", {"heaps": "3 4 5"}, "textarena", "Nim-v0"),
    ("kuhn", {}, "textarena", "KuhnPoker-v0"),
    ("tictactoe", {}, "openspiel", "tic_tac_toe"),
    ("connect4", {}, "openspiel", "connect_four"),
    ("gomoku", {"rows": 7, "columns": 7, "line": 5}, "openspiel", "mnk(m=7,n=7,k=5)"),
    ("othello", {"size": 8}, "openspiel", "othello"),
    ("nim", {"heaps": "3 4 5"}, "openspiel", "nim(pile_sizes=3;4;5,is_misere=false)"),
    ("kuhn", {}, "openspiel", "kuhn_poker"),
    ("leduc", {}, "openspiel", "leduc_poker"),
)
"""A game of earl with its options, a library, and its name for that game."""


def run(repeats: int) -> dict[str, Any]:
    """For the result see `earl bench envs --help`."""
    games = [_compared(*pair, repeats) for pair in PAIRS]
    ratios = grouped([row for row in games if "ratio" in row], lambda row: str(row["library"]))
    return {
        "games": games,
        "ratio": {name: interval([row["ratio"]["median"] for row in rows]) for name, rows in ratios.items()},
        "missing": {f"{row['library']}:{row['name']}": row["missing"] for row in games if "missing" in row},
    }


def _compared(env: str, options: dict[str, object], library: str, name: str, repeats: int) -> dict[str, Any]:
    row: dict[str, Any] = {"env": env, "library": library, "name": name}
    try:
        ways = {"earl": own(env, **options), **LIBRARIES[library](name)}
    except ImportError as error:
        return {**row, "missing": f"not measured: {error}; pip install 'earl[{library}]', and what this names"}
    rates = in_turns({way: partial(rate, episode) for way, episode in ways.items()}, repeats, warm=1)
    for way in [*ways][1:]:
        ratios = [mine / theirs for mine, theirs in zip(rates["earl"], rates[way], strict=True)]
        row["ratio" if way == library else f"ratio_{way}"] = interval(ratios)
    return row | {f"{way}_per_second": interval(rates[way]) for way in ways}


def rate(episode: Episode, number: int) -> float:
    """Turns per second of processor time: what else the machine does does not count."""
    turns, rng, began = 0, Random(number), time.process_time()
    for seed in count(number * 1_000_000):
        turns += episode(seed, rng)
        if (taken := time.process_time() - began) > SECONDS:
            break
    return turns / taken


def own(name: str, **options: object) -> Episode:
    env = registry.make(name, **options)

    def episode(seed: int, rng: Random) -> int:
        turns, over = 0, False
        _, info = env.reset(seed=seed)
        while not over:
            legal = info.get("legal_actions")
            action = rng.choice(legal) if legal else env.random_action(rng)  # type: ignore[attr-defined]
            _, _, terminated, truncated, info = env.step(action)
            turns, over = turns + 1, terminated or truncated
        return turns

    return episode


def openspiel(name: str) -> dict[str, Episode]:
    """With the legal moves as texts, of which an agent chooses, and with texts of the board alone."""
    import pyspiel

    game = pyspiel.load_game_as_turn_based(name)

    def episode(seed: int, rng: Random, named: bool = True) -> int:
        del seed  # chance is drawn here
        state, turns = game.new_initial_state(), 0
        while not state.is_terminal():
            if state.is_chance_node():
                outcomes, chances = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(rng.choices(outcomes, chances)[0])
                continue
            player, legal = state.current_player(), state.legal_actions()
            if player == 0:
                turns += 1
                state.observation_string(0)
                if named:
                    [state.action_to_string(player, move) for move in legal]
            state.apply_action(rng.choice(legal))
        state.returns()
        state.observation_string(0)
        return turns

    return {"openspiel": episode, "openspiel_numbered": partial(episode, named=False)}


def pettingzoo(name: str) -> dict[str, Episode]:
    env = import_module(f"pettingzoo.classic.{name}").env()

    def episode(seed: int, rng: Random) -> int:
        turns = 0
        env.reset(seed=seed)
        for agent in env.agent_iter():
            seen, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            if agent == env.possible_agents[0]:
                turns += 1
                text_of(seen["observation"])
            env.step(rng.choice(seen["action_mask"].nonzero()[0]))
        return turns

    return {"pettingzoo": episode}


Legal = Callable[[dict[str, Any]], list[str]]
LEGAL: dict[str, Legal] = {
    "TicTacToe-v0": lambda state: [
        f"[{cell}]" for cell, mark in enumerate(mark for row in state["board"] for mark in row) if not mark
    ],
    "ConnectFour-v0": lambda state: [f"[col {column}]" for column, top in enumerate(state["board"][0]) if top == "."],
    "Othello-v0": lambda state: [f"[{row}, {column}]" for row, column in state["valid_moves"]] or ["[0, 0]"],
    "Nim-v0": lambda state: [
        f"[{pile} {taken}]" for pile, size in enumerate(state["piles"]) for taken in range(1, size + 1)
    ],
    "KuhnPoker-v0": lambda state: [f"[{move}]" for move in state["current_legal_action_tree"]],
}
"""What TextArena's games take, by the state of a game; they pass with any text."""


def textarena(name: str) -> dict[str, Episode]:
    import textarena

    env: Any = textarena.make(name)
    players = registry.seats(f"textarena:{name}")
    legal: Legal = LEGAL.get(name, lambda _: [f"[{number}]" for number in range(10)])

    def episode(seed: int, rng: Random) -> int:
        over, turns = False, 0
        env.reset(num_players=players, seed=seed)
        while not over:
            player, _ = env.get_observation()
            turns += player == 0
            over, _ = env.step(rng.choice(legal(env.state.game_state)))
        env.close()
        return turns

    return {"textarena": episode}


LIBRARIES = {"pettingzoo": pettingzoo, "textarena": textarena, "openspiel": openspiel}
