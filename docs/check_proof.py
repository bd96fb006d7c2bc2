"""Checks a proof file of `earl eval RUN --exact --proof FILE` for Tic-Tac-Toe, without earl: python check_proof.py FILE

Below each line "seat …" stand all games that a policy can get into there. They are accepted if the policy has one move
in each of its positions, every legal reply to it is there, and the results and their numbers are those of the rules.
"""

import sys
from pathlib import Path

LINES = ("123", "456", "789", "147", "258", "369", "159", "357")


def result(moves: str, seat: int) -> str | None:
    for player in (0, 1):
        if any(set(line) <= set(moves[player::2]) for line in LINES):
            return "win" if player == seat else "loss"
    return "draw" if len(moves) == 9 else None


def count(games: dict[str, str], moves: str, seat: int, found: dict[str, int]) -> None:
    """Count the results of all games that begin with some moves. Raises ValueError where they are not those claimed."""
    ends = result(moves, seat)
    after = {game[len(moves)] for game in games if game.startswith(moves) and len(game) > len(moves)}
    if ends is None and games.get(moves) == "forfeit" and len(moves) % 2 == seat:
        ends = "forfeit"
    if games.get(moves) != ends or (ends and after):
        raise ValueError(f"{moves or 'no move'}: told as {games.get(moves)}, the rules say {ends}")
    free, own = set("123456789") - set(moves), len(moves) % 2 == seat
    if not ends and (not after <= free or len(after) != (1 if own else len(free))):
        raise ValueError(f"after {moves or 'no move'} come {sorted(after)}, of the free cells {sorted(free)}")
    found[ends or ""] = found.get(ends or "", 0) + 1
    for move in after:
        count(games, moves + move, seat, found)


def check(text: str) -> str:
    game, *seats = text.split("\nseat ")
    if game.splitlines()[0] != "tictactoe" or len(seats) != 2:
        raise ValueError("this is no proof of tictactoe for two seats")
    for seat, (claim, *listed) in enumerate(part.splitlines() for part in seats):
        found: dict[str, int] = {}
        count({moves.strip("-"): told for moves, told in map(str.split, listed)}, "", seat, found)
        told = ", ".join(f"{found.get(name, 0)} {name}" for name in ("win", "draw", "loss", "forfeit"))
        if claim != f"{seat + 1}: {told}" or len(listed) != sum(found[name] for name in found if name):
            raise ValueError(f"seat {claim} is claimed of {len(listed)} lines, found are {told}")
    return f"accepted: seat {', seat '.join(part.splitlines()[0] for part in seats)}"


if __name__ == "__main__":
    print(check(Path(sys.argv[1]).read_text()))
