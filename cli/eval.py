"""`earl eval`: measures how strong a run or a model plays."""

from pathlib import Path

import click

from earl.cli.options import declared, print_json
from earl.errors import EarlError

PROOF = "--proof writes down every game that --exact plays against `any`; add --exact, and leave out other opponents."


@declared("eval")
def command(
    player: str,
    env: str | None,
    opponents: tuple[str, ...],
    exact: bool,
    episodes: int | None,
    proof: Path | None,
    seed: int,
    server: str | None,
    model: str | None,
    checkpoint: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    root: Path,
    as_json: bool,
) -> None:
    from earl import evaluation
    from earl.cli.contestants import behind, contestant
    from earl.cli.match_tables import as_objects, match_tables
    from earl.cli.text import console, one_line
    from earl.envs import registry

    for broken, message in (
        (len(set(opponents)) < len(opponents), "--opponent names the same opponent twice; name each once."),
        (proof is not None and (not exact or opponents not in ((), ("any",))), PROOF),
        (exact and episodes is not None, "--exact plays every game there is; leave out --episodes."),
        (server is None and model is not None, "--model names what a server serves; add --server."),
        (
            server is not None and checkpoint is not None,
            "--checkpoint is of a run, and a server has none; leave it out.",
        ),
    ):
        if broken:
            raise click.UsageError(message)
    for name in opponents:
        registry.remember(name)
    rules = None if config is None and not assignments else (config, assignments)
    if server is None:
        config_, judge = contestant(root, player, env, checkpoint, rules)
    else:
        config_, judge = behind(server, player, model, env, rules)
    if not opponents:
        opponents = (evaluation.ANY,) if proof else tuple(config_.evaluate.held_out)
    planned = evaluation.matches(judge.world, opponents, exact, episodes or config_.evaluate.final_episodes)
    measured = [evaluation.evaluated(judge.world, judge.sampler, match, seed) for match in planned]
    if proof is not None:
        proof.write_text(evaluation.proof([played for _, played in measured]), encoding="utf-8")
    results = [result for result, _ in measured]
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
        for drawn in match_tables(results):
            console().print(drawn)
