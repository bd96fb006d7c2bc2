"""`earl play` against a trained model: a person plays a game with it, or watches it solve a task."""

from collections.abc import Callable
from random import Random
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from earl.agents.scripted import registry as scripted
from earl.agents.scripted.base import ScriptedPlayer
from earl.cli.text import clean
from earl.envs import registry
from earl.envs.adapters.base import Adapted
from earl.envs.base import ForeignEnv, Info, TextEnv
from earl.envs.games.base import Game
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError, Interrupted
from earl.placement.embedded import EvalPolicy
from earl.rollout.drivers import play
from earl.rollout.episode import Episode
from earl.rollout.tasks import EVALUATION
from earl.seeds import derive
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory


def ask(rule: Callable[[str], str | None]) -> str:
    """Read an action until it breaks no rule. Raises Interrupted at the end of input."""
    while True:
        try:
            text = input("your move: ").strip()
        except EOFError:
            raise Interrupted from None
        broken = rule(text)
        if broken is None:
            return text
        click.echo(clean(broken))


def board(game: Game, state: Any, seat: int) -> str:
    """The board with blanks between its cells, and the moves or the letters and numbers of which they consist. Where
    there is no board, what a seat is told."""
    if not all(game.size):
        return game.seen(state, seat)
    rows = game.render(state).splitlines()
    if len(game.actions) == game.size[1]:
        rows.append("".join(game.actions))
    elif game.actions[0] == "a1":
        rows = [*(f"{row}{number}" for number, row in enumerate(rows, 1)), "abcdefghi"[: game.size[1]]]
    return "\n".join(" ".join(row) for row in rows)


class Person:
    """The opponent of an environment whose moves are typed. `other` names the person's own opponent."""

    def __init__(self, other: str) -> None:
        self._other = other
        self._left: Any = None
        self._seat = 0

    def move(self, game: Game, state: Any, rng: Random) -> int:
        del rng
        self._seat = state.player
        self.show(game, state)
        click.echo(clean(f"You are {game.marks[state.player]} against {self._other}."))
        move = game.actions.index(ask(lambda text: _rule(game, state, text)))
        self._left = game.play(state, move)
        return move

    def act(self, env: Adapted, rng: Random) -> str:
        del rng
        click.echo(clean(env.observation()))
        return ask(env.rule)

    def show(self, game: Game, state: Any) -> None:
        before = self._left or game.deals[0][0]
        # What is seen of cards tells the moves.
        for move in (move for move in game.legal(before) if game.play(before, move) == state and not game.dealt):
            click.echo(clean(f"{self._other} plays {game.actions[move]}"))
        click.echo(board(game, state, self._seat))


def solve(env: TextEnv, seed: int) -> None:
    """Let a person act in a task."""
    observation, _ = env.reset(seed=seed)
    click.echo(clean(f"{env.instructions}\n\n{observation}"))
    terminated = truncated = False
    while not (terminated or truncated):
        observation, _, terminated, truncated, info = env.step(ask(env.rule))
        click.echo(clean(observation))
    if terminated and isinstance(env, ForeignEnv):  # whose last words may not tell
        click.echo(clean(info["outcome"]))
    if truncated:
        click.echo(f"no more turns: {env.max_turns} were allowed")


def _rule(game: Game, state: Any, text: str) -> str | None:
    legal = game.legal_actions(state)
    return None if text in legal else f"illegal: choose one of {' '.join(legal)}"


RESULTS = {Outcome.WIN: "you lose", Outcome.DRAW: "draw", Outcome.LOSS: "you win"}
"""The outcome of the environment's agent from the person's view."""
SHOWN = (Author.ENVIRONMENT, Author.TOOL)


def play_scripted(name: str, game: str, seat: int, seed: int) -> None:
    """Play against a scripted player at `seat`."""
    player, person = scripted.player(name, game), Person(name)
    if not isinstance(player, ScriptedPlayer):  # a game without a board of earl: the person has the environment's seat
        solve(registry.make(game, seat=1 - seat, opponent=player), seed)
        return
    env = registry.make(game, seat=seat, opponent=person)
    assert isinstance(env, BoardGameEnv)
    player.check(env.game)
    env.reset(seed=seed)
    rng, terminated, info = Random(f"opponent {seed}"), False, Info()
    while not terminated:
        _, _, terminated, _, info = env.step(player.act(env, rng))
    person.show(env.game, env.state)
    click.echo(RESULTS[Outcome(info["outcome"])])


def play_model(judge: EvalPolicy, name: str, seat: int, seed: int) -> None:
    """Play against a model at `seat`. The person is the environment's opponent: the model plays as in evaluations."""
    person = Person(name)
    task = Task(judge.world.env, derive(EVALUATION, seed), seat, "person")
    episode, played = play_episode(judge, task, person)
    if isinstance(episode.env, BoardGameEnv):
        person.show(episode.env.game, episode.env.state)
    else:
        click.echo(clean(episode.observation))
    if played.stop is not StopReason.FINISHED:
        last = played.turns[-1]
        reply = _text(judge, played.tokens[last.action_start : last.end])
        click.echo(clean(f"{name} replied {reply!r}, which is no legal move in time ({played.stop})"))
    click.echo(RESULTS[played.outcome])


def watch(judge: EvalPolicy, seed: int) -> None:
    _, played = play_episode(judge, Task(judge.world.env, derive(EVALUATION, seed, "", 0, 0)))
    for turn in played.turns:
        asked = slice(turn.prompt_start, turn.action_start)
        shown = played.tokens[asked][np.isin(played.authors[asked], SHOWN)]
        click.echo(clean(f"task   {_text(judge, shown)}"))
        click.echo(clean(f"model  {_text(judge, played.tokens[turn.action_start : turn.end])}"))
    solved = played.outcome is Outcome.WIN
    click.echo("solved" if solved else f"not solved ({played.stop})")


def _text(judge: EvalPolicy, tokens: NDArray[np.int32]) -> str:
    return judge.world.chat.decode(tuple(tokens.tolist()))


def play_episode(judge: EvalPolicy, task: Task, opponent: object = None) -> tuple[Episode, Trajectory]:
    """Play one episode. Raises EarlError if the environment fails."""
    episode = judge.world.episode(task, task.seed, 0, opponent)
    [played] = play([episode], judge.sampler)
    if played.error:
        raise EarlError(f"environment {task.env!r} fails: {played.error}; check it with `earl envs check`")
    return episode, played
