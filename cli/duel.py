"""`earl play` against a trained model: a person plays a game with it, or watches it solve a task."""

from collections.abc import Callable
from random import Random

import click

from earl.cli.text import clean
from earl.envs.base import TextEnv
from earl.envs.games.base import Game, State
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError, Interrupted
from earl.placement.embedded import EvalPolicy
from earl.rollout.drivers import play
from earl.rollout.tasks import EVALUATION
from earl.seeds import derive
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory, Turn


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


def board(game: Game, state: State) -> str:
    """The board with blanks between its cells; below it the moves, if they are columns."""
    rows = game.render(state).splitlines()
    if len(game.actions) == game.size[1]:
        rows.append("".join(game.actions))
    return "\n".join(" ".join(row) for row in rows)


class Person:
    """The opponent of an environment whose moves are typed. `other` names the person's own opponent."""

    def __init__(self, other: str) -> None:
        self._other = other
        self._left: State | None = None

    def move(self, game: Game, state: State, rng: Random) -> int:
        del rng
        self.show(game, state)
        click.echo(f"You are {game.marks[state.player]}.")
        move = game.actions.index(ask(lambda text: _rule(game, state, text)))
        self._left = game.play(state, move)
        return move

    def show(self, game: Game, state: State) -> None:
        before = self._left or State()
        made = [move for move in game.legal(before) if game.play(before, move) == state]
        if made:
            click.echo(clean(f"{self._other} plays {game.action(made[0])}"))
        click.echo(board(game, state))


def play_env(env: TextEnv, seed: int, other: str) -> None:
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


RESULTS = {Outcome.WIN: "you lose", Outcome.DRAW: "draw", Outcome.LOSS: "you win"}
"""The model's outcome from the person's view."""
SHOWN = (Author.ENVIRONMENT, Author.TOOL)


def play_model(judge: EvalPolicy, name: str, seat: int, seed: int) -> None:
    """Play against a model at `seat`. The person is the environment's opponent: the model plays as in evaluations."""
    person = Person(name)
    task = Task(judge.world.env, derive(EVALUATION, seed), seat, "person")
    episode = judge.world.episode(task, task.seed, 0, opponent=person)
    [played] = play([episode], judge.sampler)
    _check(played)
    assert isinstance(episode.env, BoardGameEnv)
    person.show(episode.env.game, episode.env.state)
    if played.stop is not StopReason.FINISHED:
        reply = _text(judge, played, played.turns[-1])
        click.echo(clean(f"{name} replied {reply!r}, which is no legal move in time ({played.stop})"))
    click.echo(RESULTS[played.outcome])


def watch(judge: EvalPolicy, seed: int) -> None:
    task = Task(judge.world.env, derive(EVALUATION, seed, "", 0, 0))
    [played] = play([judge.world.episode(task, task.seed, 0)], judge.sampler)
    _check(played)
    for turn in played.turns:
        asked = played.tokens[turn.prompt_start : turn.action_start]
        shown = asked[[author in SHOWN for author in played.authors[turn.prompt_start : turn.action_start]]]
        click.echo(clean(f"task   {judge.world.chat.decode(tuple(map(int, shown)))}"))
        click.echo(clean(f"model  {_text(judge, played, turn)}"))
    solved = played.outcome is Outcome.WIN
    click.echo("solved" if solved else f"not solved ({played.stop})")


def _text(judge: EvalPolicy, played: Trajectory, turn: Turn) -> str:
    return judge.world.chat.decode(tuple(map(int, played.tokens[turn.action_start : turn.end])))


def _check(played: Trajectory) -> None:
    if played.error:
        raise EarlError(f"environment {played.task.env!r} fails: {played.error}; check it with `earl envs check`")
