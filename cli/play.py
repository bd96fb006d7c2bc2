"""`earl play`: lets a person play in the terminal."""

from pathlib import Path

import click

from earl.cli.options import runs_option

SEATS = ("first", "second")


@click.command()
@click.argument("env")
@click.option(
    "--against", metavar="RUN|OPPONENT", help="A run, which plays its best checkpoint, or a scripted opponent."
)
@click.option("--seat", type=click.Choice(SEATS), help="Whether you move first.  [default: first]")
@click.option("--checkpoint", metavar="best|last|STEP", help="Of a run; the best unless given.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draws the opponent's choices.")
@runs_option
def command(env: str, against: str | None, seat: str | None, checkpoint: str | None, seed: int, root: Path) -> None:
    """Play against a run or a scripted opponent.

    Opponents are those of `earl envs show ENV`; a name that a run has too means the run. In a task such as arithmetic
    nobody is met: without --against you solve the task of --seed yourself, with --against RUN you watch how the run's
    model solves one. Ctrl-D or Ctrl-C leaves.
    """
    from earl.agents.scripted import registry as scripted
    from earl.cli import contestants, duel
    from earl.cli.players import find_run, nobody
    from earl.envs import registry
    from earl.errors import EarlError

    registry.remember(env)
    task = registry.seats(env) == 1
    if task and seat:
        raise click.UsageError(f"{env} has one seat; leave out --seat.")
    folder = None if against is None else find_run(root, against)
    if checkpoint is not None and folder is None:
        raise click.UsageError("--checkpoint is of a run; name one with --against, or leave it out.")
    other = 1 - SEATS.index(seat or "first")
    try:
        if folder is not None:
            _, judge = contestants.of_run(folder, env, checkpoint)
            if task:
                duel.watch(judge, seed)
            else:
                duel.play_model(judge, folder.name, other, seed)
        elif against is None and task:
            duel.solve(registry.make(env), seed)
        elif against is None:
            some = ", ".join(scripted.names(env))
            raise EarlError(f"{env} is played against somebody; name a run or an opponent with --against, of: {some}")
        elif task or against.partition("@")[0].partition(":")[0] not in {*scripted.STRATEGIES, "minimax"}:
            raise nobody(root, against, env)
        else:
            duel.play_scripted(scripted.player(against, env), against, env, other, seed)
    except KeyboardInterrupt:
        click.echo("\nleft before the end")
