"""How fast the solver of Connect Four is, position by position, and whether another solver agrees with it."""

from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np

from earl.agents.scripted import connect4
from earl.envs.games.base import State
from earl.envs.games.connect4 import COLUMNS, CONNECT4
from earl.errors import EarlError

Scores = dict[int, int]
"""By column; those that are full are left out."""
OPENING_PLIES = 8


def read_facts(file: Path) -> list[tuple[State, Scores]]:
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        moves, *scores = line.split()
        if len(scores) != COLUMNS:
            raise EarlError(
                f"{file}, line {number}: {line!r} is not the moves so far and a score or a dot for each column"
            )
        told = {column: int(score) for column, score in enumerate(scores) if score != "."}
        found.append((CONNECT4.after(moves.strip("-")), told))
    return found


def drawn(number: int, seed: int) -> list[State]:
    """Positions of random games that go on, of each number of stones alike many."""
    rng, found = Random(seed), list[State]()
    while len(found) < number:
        state: State | None = State()
        for _ in range(len(found) % CONNECT4.max_plies):
            state = state and _any_that_goes_on(state, rng)
        if state is not None:
            found.append(state)
    return found


def _any_that_goes_on(state: State, rng: Random) -> State | None:
    after = [CONNECT4.play(state, move) for move in CONNECT4.legal(state)]
    going_on = [one for one in after if not CONNECT4.over(one)]
    return rng.choice(going_on) if going_on else None


def run(positions: int, seed: int, facts: Path | None) -> dict[str, Any]:
    """Score all moves of each position. For the result see `earl bench solver --help`."""
    told = read_facts(facts) if facts else [(state, None) for state in drawn(positions, seed)]
    began = process_time()
    connect4.score(CONNECT4.after("121212"))
    first = process_time() - began
    seconds, stones, agree = [], [], 0
    for state, known in told:
        began = process_time()
        scores = {move: -connect4.score(CONNECT4.play(state, move)) for move in CONNECT4.legal(state)}
        seconds.append(process_time() - began)
        stones.append((state.first | state.second).bit_count())
        agree += scores == known
    return {
        "first_use_seconds": first,
        "positions": len(told),
        "agree": agree if facts else None,
        "milliseconds": _quantiles(np.array(seconds)),
        "opening_milliseconds": _quantiles(np.array(seconds)[np.array(stones) <= OPENING_PLIES]),
    }


def _quantiles(seconds: Any) -> dict[str, float]:
    named = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: 1000 * float(np.quantile(seconds, share)) for name, share in named.items()} if len(seconds) else {}
