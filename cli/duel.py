"""A trained model in the terminal: against a person, or at work on a task."""

import click

from earl.cli.person import Person
from earl.cli.text import clean
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError
from earl.placement.judge import Judge
from earl.rollout.lockstep import play
from earl.rollout.tasks import EVALUATION
from earl.seeds import derive
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory, Turn

RESULTS = {Outcome.WIN: "you lose", Outcome.DRAW: "draw", Outcome.LOSS: "you win"}
"""The model's outcome as the person sees it."""
SHOWN = (Author.ENVIRONMENT, Author.TOOL)


def play_model(judge: Judge, name: str, seat: int, seed: int) -> None:
    """Let a person play against a model that sits at `seat`.

    The person is the environment's opponent, so that the model plays exactly as it does in an evaluation.
    """
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


def watch(judge: Judge, seed: int) -> None:
    """Show how a model solves a held-out task, reply by reply."""
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


def _text(judge: Judge, played: Trajectory, turn: Turn) -> str:
    """What the model wrote in a turn."""
    return judge.world.chat.decode(tuple(map(int, played.tokens[turn.action_start : turn.end])))


def _check(played: Trajectory) -> None:
    if played.error:
        raise EarlError(f"environment {played.task.env!r} fails: {played.error}; check it with `earl envs check`")
