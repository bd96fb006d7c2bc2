"""Asks BitBully, another solver of Connect Four, for the scores of all moves in random positions of every length.

    python -m venv other && other/bin/pip install bitbully
    other/bin/python tests/agents/connect4_facts.py 5000 > tests/agents/connect4_facts.txt

BitBully is under the AGPL: it runs in an environment of its own, and only facts come out. A line has the moves so far,
a dash for none, and the scores of columns 1 to 7 (22 less the winner's stones, negative for a loss; a dot for a full
column).
"""

import random
import sys
from itertools import count

from bitbully import BitBully, Board  # type: ignore[import-not-found]

CELLS = 42


def position(length: int, rng: random.Random) -> tuple[str, Board] | None:
    """A game of random moves that do not end it, if there are so many."""
    board, moves = Board(), ""
    while len(moves) < length:
        after = [(move, board.play_on_copy(move)) for move in board.legal_moves()]
        going_on = [(move, next) for move, next in after if not next.has_win()]
        if not going_on:
            return None
        move, board = rng.choice(going_on)
        moves += str(move + 1)
    return moves, board


def main(number: int) -> None:
    agent, rng, found = BitBully(), random.Random(0), 0
    for tried in count():
        made = position(found % CELLS, random.Random(rng.random()))
        if made is None:
            continue
        scores = agent.score_all_moves(made[1])
        print(made[0] or "-", *(scores.get(column, ".") for column in range(7)))
        found += 1
        if found == number:
            print(f"{number} of {tried + 1} random games", file=sys.stderr)
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
