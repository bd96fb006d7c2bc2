"""A person in the terminal: what they see, what they type, and the seat they take in an environment."""

from collections.abc import Callable
from random import Random

import click

from earl.cli.text import clean
from earl.envs.base import TextEnv
from earl.envs.games.base import Game, State
from earl.envs.games.env import BoardGameEnv
from earl.errors import Interrupted


def ask(rule: Callable[[str], str | None]) -> str:
    """Read an action until it breaks no rule.

    Raises:
        Interrupted: at the end of input too. It passes through whatever environment the person sits in.
    """
    while True:
        try:
            text = input("your move: ").strip()
        except EOFError:
            raise Interrupted from None
        broken = rule(text)
        if broken is None:
            return text
        click.echo(clean(broken))


def board(game: Game, state: State) -> str:
    """The board with room between its cells, and the moves below where they are columns."""
    rows = game.render(state).splitlines()
    if len(game.actions) == game.size[1]:
        rows.append("".join(game.actions))
    return "\n".join(" ".join(row) for row in rows)


class Person:
    """The opponent of an environment whose moves are typed.

    Args:
        other: who the person plays against.
    """

    def __init__(self, other: str) -> None:
        self._other = other
        self._left: State | None = None

    def move(self, game: Game, state: State, rng: Random) -> int:
        """Ask for a move."""
        del rng
        self.show(game, state)
        click.echo(f"You are {game.marks[state.player]}.")
        move = game.actions.index(ask(lambda text: _rule(game, state, text)))
        self._left = game.play(state, move)
        return move

    def show(self, game: Game, state: State) -> None:
        """Say what the other did since the person's last move, and show the board."""
        before = self._left or State()
        made = [move for move in game.legal(before) if game.play(before, move) == state]
        if made:
            click.echo(clean(f"{self._other} plays {game.action(made[0])}"))
        click.echo(board(game, state))


def play_env(env: TextEnv, seed: int, other: str) -> None:
    """Let a person act in an environment to its end."""
    observation, _ = env.reset(seed=seed)
    if not isinstance(env, BoardGameEnv):
        click.echo(clean(f"{env.instructions}\n"))
    over = False
    while not over:
        _show(env, observation, other)
        observation, _, terminated, truncated, _ = env.step(ask(env.rule))
        over = terminated or truncated
    _show(env, observation, other)
    if truncated:
        click.echo(f"no more turns: {env.max_turns} were allowed")


def _show(env: TextEnv, observation: str, other: str) -> None:
    if not isinstance(env, BoardGameEnv):
        return click.echo(clean(observation))
    if env.game.over(env.state):
        result = observation.splitlines()[-1]
        return click.echo(f"{board(env.game, env.state)}\n{result}")
    return click.echo(clean(f"{board(env.game, env.state)}\nYou are {env.game.marks[env.seat]} against {other}."))


def _rule(game: Game, state: State, text: str) -> str | None:
    legal = game.legal_actions(state)
    return None if text in legal else f"illegal: choose one of {' '.join(legal)}"
