"""`earl eval`: measures how strong a run or a model plays."""

from pathlib import Path

import click

from earl.cli.options import json_option, print_json, recipe_options, runs_option
from earl.errors import EarlError


@click.command(name="eval")
@click.argument("player", metavar="RUN|MODEL")
@click.option("--env", help="The environment; a run knows its own.")
@click.option("--opponent", "opponents", multiple=True, help="Who is met; may be repeated. `any` with --exact: all.")
@click.option("--exact", is_flag=True, help="Enumerate every reply of the opponent instead of sampling games.")
@click.option(
    "--episodes", type=click.IntRange(min=1), help="Games per opponent and seat, or tasks; else the recipe's."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draws the games or tasks.")
@click.option("--server", metavar="URL", help="Ask an OpenAI-compatible server for MODEL's replies, up to /v1.")
@click.option("--model", metavar="NAME", help="What the server calls MODEL, where that is not its name.")
@click.option("--checkpoint", metavar="best|last|STEP", help="Of a run; the best unless given.")
@recipe_options
@runs_option
@json_option
def command(
    player: str,
    env: str | None,
    opponents: tuple[str, ...],
    exact: bool,
    episodes: int | None,
    seed: int,
    server: str | None,
    model: str | None,
    checkpoint: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    root: Path,
    as_json: bool,
) -> None:
    """Measure how strong a run or a model plays.

    RUN is a name in --runs or a path, and plays by its own recipe. MODEL is a folder or hub id of a language model,
    and plays by the recipe of --env, which --config and --set may change. Both play greedily, from both seats;
    results of samples come with Wilson 95 % intervals. With --exact every reply of the opponent is tried: the result
    holds, it is no estimate; against `any`, which may make every legal move, it counts the leaves of the tree.

    With --server, MODEL runs elsewhere. Where it is a folder or hub id, vLLM's server is asked with token ids by its
    tokenizer. Where it is only a name, any server is asked in text, and a token of the recipe is a character. A key,
    where the server wants one, is read from the environment variable EARL_API_KEY.
    """
    from earl import evaluate
    from earl.cli.contestants import behind, contestant
    from earl.cli.match_tables import as_objects, match_table
    from earl.cli.text import console, one_line

    _refuse(opponents, exact and episodes is not None, server, model, checkpoint)
    rules = None if config is None and not assignments else (config, assignments)
    if server is None:
        config_, judge = contestant(root, player, env, checkpoint, rules)
    else:
        config_, judge = behind(server, player, model, env, rules)
    planned = evaluate.matches(judge.world, opponents, exact, episodes or config_.evaluate.final_episodes)
    results = [evaluate.evaluate(judge.world, judge.sampler, match, seed) for match in planned]
    for result in results:
        if len(result.faults) == result.episodes:
            raise EarlError(f"all {result.episodes} episodes ended by a fault: {result.faults[0]}")
        if result.faults:
            click.echo(
                f"warning: {len(result.faults)} of {result.episodes} episodes against {result.opponent or 'the tasks'} "
                f"have no result and count as lost: {one_line(result.faults[0])}",
                err=True,
            )
    if as_json:
        objects = as_objects(results)
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        console().print(match_table(results))


def _refuse(
    opponents: tuple[str, ...], counted: bool, server: str | None, model: str | None, checkpoint: str | None
) -> None:
    if len(set(opponents)) < len(opponents):
        raise click.UsageError("--opponent names somebody twice; name each opponent once.")
    if counted:
        raise click.UsageError("--exact plays every game there is; leave out --episodes.")
    if server is None and model is not None:
        raise click.UsageError("--model names what a server serves; add --server.")
    if server is not None and checkpoint is not None:
        raise click.UsageError("--checkpoint is of a run, and a server has none; leave it out.")
