"""`earl solve`: the value of each move in a solved game."""

from typing import Any

import click

from earl.cli.options import declared, print_json
from earl.cli.text import print_table

VALUES = {1: "win", 0: "draw", -1: "loss"}


@declared("solve")
def command(env: str, moves: str, as_json: bool) -> None:
    from earl.agents.scripted import perfect
    from earl.envs.games import GAMES
    from earl.errors import EarlError, unknown

    if env not in perfect.SOLVERS:
        raise unknown("solved game", env, perfect.SOLVERS)
    game = GAMES[env]
    state = game.after(moves)
    if game.over(state):
        raise EarlError(f"{env}: the game is over after {moves!r}; leave out its last move")
    ends = {game.actions[move]: end for move, end in perfect.solved(game, state).items()}
    best = max(end.rank for end in ends.values())
    rows: list[dict[str, Any]] = [
        {"move": move, "value": end.value, "plies": end.plies, "best": end.rank == best} for move, end in ends.items()
    ]
    if as_json:
        return print_json({"env": env, "moves": moves, "player": game.marks[state.player], "actions": rows})
    click.echo(f"{game.render(state)}\n{game.marks[state.player]} to move")
    named = [(row["move"], VALUES[row["value"]], row["plies"], "best" if row["best"] else "") for row in rows]
    return print_table(("move", "result", "plies to the end", ""), named)
