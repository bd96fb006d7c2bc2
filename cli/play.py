"""`earl play`: lets a person play in the terminal."""

from pathlib import Path

import click

from earl.cli.match_tables import SEATS
from earl.cli.options import declared


@declared("play")
def command(
    env: str, against: str | None, seat: str | None, checkpoint: str | None, seed: int, root: Path, other: str | None
) -> None:
    from earl.agents.scripted import registry as scripted
    from earl.cli import contestants, duel
    from earl.envs import registry
    from earl.errors import EarlError
    from earl.runs.folder import find_run

    registry.remember(env)
    task = registry.seats(env) == 1
    if task and seat:
        raise click.UsageError(f"{env} has one seat; leave out --seat.")
    folder = None if against is None else find_run(root, against)
    if checkpoint is not None and folder is None:
        raise click.UsageError("--checkpoint is of a run; name one with --against, or leave it out.")
    if other is not None:
        if against is None or checkpoint or task:
            raise click.UsageError("--watch names the second of two players of a game; name the first with --against.")
        pair = (other, against) if seat == "second" else (against, other)
        return duel.watch_game(contestants.league(root, pair, env), pair, seed)
    own = 1 - SEATS.index(seat or "first")
    try:
        if folder is not None:
            _, judge = contestants.of_run(folder, env, checkpoint)
            if task:
                duel.watch(judge, seed)
            else:
                duel.play_model(judge, folder.name, own, seed)
        elif against is None and task:
            duel.solve(registry.make(env), seed)
        elif against is None:
            some = ", ".join(scripted.names(env))
            raise EarlError(f"{env} is a game for two; name a run or an opponent with --against, of: {some}")
        elif task or against.partition("@")[0].partition(":")[0] not in {*scripted.BOARD_PLAYERS, *scripted.names(env)}:
            raise contestants.unknown_player(root, against, env)
        else:
            duel.play_scripted(against, env, own, seed)
    except KeyboardInterrupt:
        click.echo("\nleft before the end")
    return None
