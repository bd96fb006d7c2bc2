"""Derives the book of `earl.agents.scripted.connect4` by its own search, and extends it in any number of sittings.

    python docs/connect4_book.py --plies 4 --minutes 45

or in parts side by side, which are put together then:

    python docs/connect4_book.py --plies 5 --part 1 --parts 2 --books agents/scripted/connect4.book --out part1
    python docs/connect4_book.py --plies 5 --books part1 part2

Solves all positions of so many plies, then those of fewer, into a large transposition table that the present book is
put into first. The new book has the openings among the positions that took long, with what is known of each.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earl.agents.scripted import connect4 as solver
from earl.envs.games.base import State
from earl.envs.games.connect4 import COLUMNS, legal, play


def positions(plies: int) -> list[list[State]]:
    """Those in which the game goes on, by the number of stones; of mirror images one."""
    levels = [[State()]]
    for _ in range(plies):
        after = [play(state, move) for state in levels[-1] for move in legal(state)]
        levels.append(list({solver.mixed_key(*solver.sides(state)): state for state in after if legal(state)}.values()))
    return levels


def stones(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each position: a column of a key has a one above its top stone."""
    bare = keys * pow(solver.MIXER, -1, 1 << solver.KEY_BITS) & solver.KEY
    heights = np.array([max(0, held.bit_length() - 1) for held in range(128)])
    return np.asarray(sum(heights[bare >> 7 * column & 127] for column in range(COLUMNS)))


def entries(table: NDArray[np.int64], number: int, least: int) -> NDArray[np.int64]:
    """Of the positions that took a search of 2**`least` positions or more, those of the fewest stones."""
    places = np.flatnonzero(table >> solver.WORK_AT > least)
    low = solver.KEY_BITS + 1 - (len(table).bit_length() - 1)
    keys = places // 2 << low | table[places] & (1 << low) - 1
    bounds = table[places] >> solver.LOWER_AT & (1 << 2 * solver.SCORE_BITS) - 1
    return np.asarray(keys | bounds << solver.KEY_BITS)[np.argsort(stones(keys), kind="stable")[:number]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plies", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=45, help="stop after so many, with what is done by then")
    parser.add_argument("--entries", type=int, default=200_000, help="of the book at most")
    parser.add_argument("--bits", type=int, default=26, help="the table has 2**BITS entries of 8 bytes")
    parser.add_argument("--part", type=int, default=1, help="of --parts, which are solved side by side")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--books", type=Path, nargs="*", default=[], help="other books to put in first, such as parts")
    parser.add_argument("--out", type=Path, default=solver.BOOK)
    options = parser.parse_args()
    if not 1 <= options.part <= options.parts:
        parser.error(f"--part {options.part} is not within 1 … {options.parts}, which --parts sets")
    table, nodes = solver.new_table(options.bits), np.zeros(1, np.int64)
    for book in (options.out, *options.books):
        if book.exists():
            solver.fill(table, solver.read_book(book))
    end = time.monotonic() + 60 * options.minutes
    for plies, whole in reversed(list(enumerate(positions(options.plies)))):
        level, solved = whole[options.part - 1 :: options.parts], 0
        while solved < len(level) and time.monotonic() < end:
            solver.solve(*solver.sides(level[solved]), -solver.HIGHEST, solver.HIGHEST, table, nodes)
            solved += 1
        print(f"{solved} of {len(level)} positions of {plies} plies, {nodes[0]:,} nodes", flush=True)
    solver.write_book(entries(table, options.entries, least=12), options.out)


if __name__ == "__main__":
    main()
