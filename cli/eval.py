"""`earl eval`: measures how strong a run or a model plays."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from earl.cli.options import declared, print_json
from earl.errors import EarlError

if TYPE_CHECKING:
    from earl.league import GameResult

PROOF = "--proof writes down every game that --exact plays against `any`; add --exact, and leave out other opponents."


@declared("eval")
def command(
    players: tuple[str, ...],
    env: str | None,
    opponents: tuple[str, ...],
    round_robin: bool,
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

    player, *others = players
    alone = opponents or exact or server or model or checkpoint or config or assignments or proof
    for broken, message in (
        (others and not round_robin, "Several players take --round-robin; else name one."),
        (round_robin and (not others or len({*players}) < len(players)), "--round-robin takes players that differ."),
        (round_robin and alone, "--round-robin takes only players, --env, --episodes, --seed, --runs and --json."),
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
    for name in (*opponents, *(players if round_robin else ())):
        registry.remember(name)
    if round_robin:
        return _league(root, players, env, episodes or LEAGUE_GAMES, seed, as_json)
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
        return print_json(objects[0] if len(objects) == 1 else objects)
    for drawn in match_tables(results):
        console().print(drawn)
    return None


LEAGUE_GAMES = 50


def _league(root: Path, players: tuple[str, ...], env: str | None, games: int, seed: int, as_json: bool) -> None:
    from earl.cli.contestants import league
    from earl.cli.text import console, table
    from earl.league import ratings

    results = league(root, players, env).play(players, games, seed)
    rated = ratings(players, results)
    against = {one.name: {other.name: _record(results, one.name, other.name) for other in rated} for one in rated}
    for name, met in against.items():
        del met[name]
    if as_json:
        return print_json([{**asdict(one), "against": against[one.name]} for one in rated])
    rows = []
    for number, one in enumerate(rated, 1):
        found = (against[one.name].get(other.name) for other in rated)
        records = ("/".join(str(record[key]) for key in ("won", "drawn", "lost")) if record else "" for record in found)
        interval = f"[{one.low:+.0f}, {one.high:+.0f}]"
        rows.append((f"{number}", one.name, f"{one.elo:+.0f}", interval, f"{one.points:g}/{one.games}", *records))
    head = ("", "player", "rating", "95 % interval", "points", *(f"against {n}" for n in range(1, len(rated) + 1)))
    click.echo(f"{len(results)} games, each after a random move of both seats; won/drawn/lost")
    console().print(table(head, rows, right=head[2:]))
    return None


def _record(results: "Sequence[GameResult]", name: str, other: str) -> dict[str, int]:
    """Games of a player against another one, from both seats."""
    own = [r.points if r.players[0] == name else 1 - r.points for r in results if {*r.players} == {name, other}]
    lost = (r.forfeit and r.players[int(r.points)] == name for r in results if {*r.players} == {name, other})
    return {"won": own.count(1), "drawn": own.count(0.5), "lost": own.count(0), "forfeits": sum(lost)}
