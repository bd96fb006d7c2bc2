"""Nim: heaps of objects, from one of which a player takes some; who takes the last one wins (Bouton 1901)."""

import re
from functools import cache, lru_cache, reduce
from operator import xor
from typing import Any, NamedTuple

from earl.envs.games.base import Game, Player
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError

LETTERS = "abcdefgh"
TALLEST = 99
POSITIONS = 1 << 13
"""That are remembered."""


class Heaps(NamedTuple):
    heaps: tuple[int, ...]
    plies: int = 0

    @property
    def player(self) -> int:
        return self.plies & 1


@cache
def nim_game(heaps: tuple[int, ...]) -> Game:
    moves = [(heap, taken) for heap, size in enumerate(heaps) for taken in range(1, size + 1)]
    names = tuple(f"{LETTERS[heap]}{taken}" for heap, taken in moves)

    @lru_cache(POSITIONS)
    def legal(state: Heaps) -> tuple[int, ...]:
        left = state.heaps
        return tuple([number for number, (heap, taken) in enumerate(moves) if taken <= left[heap]])

    @lru_cache(POSITIONS)
    def play(state: Heaps, move: int) -> Heaps:
        heap, taken = moves[move]
        left = [*state.heaps]
        assert left[heap] >= taken, f"heap {heap} has {left[heap]} objects, not {taken}"
        left[heap] -= taken
        return Heaps(tuple(left), state.plies + 1)

    return Game(
        name="nim",
        marks=("first", "second"),
        actions=names,
        instructions=(
            "You play Nim with heaps of objects. The players take turns to take one object or more from one heap. "
            "Whoever takes the last object of all wins. You are told whether you moved first or second, then each heap "
            "with its letter and its size. Answer with a heap's letter and the number of objects that you take from "
            "it, such as a2, and nothing else."
        ),
        max_plies=sum(heaps),
        legal=legal,
        play=play,
        winner=lambda state: None if any(state.heaps) else 1 - state.player,
        render=lambda state: " ".join(f"{LETTERS[heap]}:{size}" for heap, size in enumerate(state.heaps)),
        preferred=tuple(range(len(moves))),
        promise=lambda _state, _player: 0,  # search sees the end, or knows nothing
        solvable=True,
        positions=POSITIONS,
        deals=((Heaps(heaps), 1.0),),
    )


def best_moves(game: Game, state: Any) -> tuple[int, ...]:
    """Those that leave heaps whose exclusive or is 0, from which every move loses; all moves where there is none."""
    legal = game.legal(state)
    return tuple(move for move in legal if reduce(xor, game.play(state, move).heaps) == 0) or legal


def nim(seat: int = 0, opponent: Player | None = None, draw_reward: float = 0.0, heaps: str = "3 4 5") -> BoardGameEnv:
    sizes = tuple(int(size) for size in re.findall(r"\d{1,4}", heaps, re.ASCII))
    if (
        heaps != " ".join(map(str, sizes))
        or not 1 <= len(sizes) <= len(LETTERS)
        or not all(1 <= size <= TALLEST for size in sizes)
    ):
        raise EarlError(
            f"nim has no heaps {heaps!r}; name 1 … {len(LETTERS)} sizes within 1 … {TALLEST}, such as '3 4 5'"
        )
    return BoardGameEnv(nim_game(sizes), seat, opponent, draw_reward)
