"""`earl eval`: measures how strong a run or a model plays."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from earl.cli.options import declared, print_json
from earl.errors import EarlError

if TYPE_CHECKING:
    from earl.config import Config
    from earl.evaluation import Match
    from earl.league import GameResult
    from earl.matches import MatchResult
    from earl.placement.embedded import EvalPolicy
    from earl.rollout.episode import Episode

PROOF = "--proof writes down every game that --exact plays against `any`; add --exact, and leave out other opponents."

POSITIONS = "--positions asks for single moves, not games; leave out --opponent, --exact, --episodes and --proof."
GAMES = ("opponents", "exact", "episodes", "proof")


@declared("eval")
def command(
    players: tuple[str, ...],
    opponents: tuple[str, ...],
    round_robin: bool,
    exact: bool,
    episodes: int | None,
    positions: int | None,
    proof: Path | None,
    seed: int,
    as_json: bool,
    **given: Any,
) -> None:
    from earl import evaluation
    from earl.agents.scripted.registry import ANY
    from earl.cli.match_tables import as_objects, print_matches
    from earl.envs import registry

    _check(click.get_current_context().params)
    for name in (*opponents, *(players if round_robin else ())):
        registry.remember(name)
    if round_robin:
        return _league(given["root"], players, given["env"], episodes or LEAGUE_GAMES, seed, as_json)
    config, judge = _policy(players[0], given)
    if positions is not None:
        return _judge_positions(judge, positions, seed, as_json)
    if not opponents:
        opponents = (ANY,) if proof else tuple(config.evaluate.held_out)
    planned = evaluation.matches(judge.world, opponents, exact, episodes or config.evaluate.final_episodes)
    measured = _measured(judge, planned, seed)
    if proof is not None:
        proof.write_text(evaluation.proof([played for _, played in measured]), encoding="utf-8")
    results = [result for result, _ in measured]
    _warn_of_faults(results)
    if as_json:
        objects = as_objects(results)
        return print_json(objects[0] if len(objects) == 1 else objects)
    return print_matches(results)


def _check(given: Mapping[str, Any]) -> None:
    players, opponents, exact = given["players"], given["opponents"], given["exact"]
    several, server = len(players) > 1, given["server"] is not None
    without = ("opponents", "exact", "positions", "proof", "server", "model", "checkpoint", "config", "assignments")
    for broken, message in (
        (several and not given["round_robin"], "Several players take --round-robin; else name one."),
        (given["round_robin"] and len({*players}) < max(2, len(players)), "--round-robin takes players that differ."),
        (
            given["round_robin"] and any(given[name] not in (None, False, ()) for name in without),
            "--round-robin takes only players, --env, --episodes, --seed, --runs and --json.",
        ),
        (len({*opponents}) < len(opponents), "--opponent names the same opponent twice; name each once."),
        (given["proof"] is not None and (not exact or opponents not in ((), ("any",))), PROOF),
        (exact and given["episodes"] is not None, "--exact plays every game there is; leave out --episodes."),
        (given["positions"] is not None and any(given[name] for name in GAMES), POSITIONS),
        (given["model"] is not None and not server, "--model names what a server serves; add --server."),
        (server and given["checkpoint"] is not None, "--checkpoint is of a run, and a server has none; leave it out."),
    ):
        if broken:
            raise click.UsageError(message)


def _policy(player: str, given: Mapping[str, Any]) -> "tuple[Config, EvalPolicy]":
    from earl.cli.contestants import behind, contestant

    env, rules = given["env"], (given["config"], given["assignments"])
    if given["server"] is None:
        return contestant(given["root"], player, env, given["checkpoint"], rules)
    return behind(given["server"], player, given["model"], env, rules)


def _measured(judge: "EvalPolicy", planned: "Sequence[Match]", seed: int) -> "list[tuple[MatchResult, list[Episode]]]":
    from rich.text import Text

    from earl import evaluation
    from earl.cli.text import console, one_line

    trees: evaluation.Trees = {}
    measured = []
    with console(stderr=True).status("") as status:  # shows nothing if stderr is no terminal
        for number, match in enumerate(planned, 1):
            met = one_line(match.opponent or "the tasks")
            status.update(Text(f"match {number} of {len(planned)}, against {met}"))
            measured.append(evaluation.evaluated(judge.world, judge.sampler, match, seed, trees))
    return measured


def _judge_positions(judge: "EvalPolicy", games: int, seed: int, as_json: bool) -> None:
    from earl.cli.match_tables import SEATS
    from earl.cli.text import console, print_table
    from earl.matches import wilson
    from earl.positions import judged

    rows, objects = [], []
    with console(stderr=True).status("judging single moves"):
        results = judged(judge.world, judge.sampler, games, seed)
    for result in results:
        seat, count = SEATS[result.seat], result.positions
        share, illegal = result.optimal / max(1, count), result.illegal / max(1, count)
        low, high = wilson(result.optimal, count)
        rows.append((seat, f"{count:,}", f"{share:.1%} [{low * 100:.1f}, {high * 100:.1f}]", f"{illegal:.1%}"))
        interval = {"optimal_interval": [low, high]}
        objects.append({"seat": seat, "positions": count, "optimal": share, **interval, "illegal": illegal})
    if as_json:
        return print_json(objects)
    head = ("seat to move", "positions", "optimal moves", "illegal")
    return print_table(head, rows, right=head[1:])


def _warn_of_faults(results: "Sequence[MatchResult]") -> None:
    """Raises EarlError where no episode has a result."""
    from earl.cli.text import one_line

    for result in results:
        if len(result.faults) == result.episodes:
            raise EarlError(f"all {result.episodes} episodes ended by a fault: {result.faults[0]}")
        if result.faults:
            click.echo(
                f"warning: {len(result.faults)} of {result.episodes} episodes against {result.opponent or 'the tasks'} "
                f"have no result and count as lost: {one_line(result.faults[0])}",
                err=True,
            )


LEAGUE_GAMES = 50


def _league(root: Path, players: tuple[str, ...], env: str | None, games: int, seed: int, as_json: bool) -> None:
    from earl.cli.contestants import league
    from earl.cli.text import console, print_table
    from earl.league import ratings

    with console(stderr=True).status("playing every pair"):
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
    return print_table(head, rows, right=head[2:])


def _record(results: "Sequence[GameResult]", name: str, other: str) -> dict[str, int]:
    """Games of a player against another one, from both seats."""
    own = [r.points if r.players[0] == name else 1 - r.points for r in results if {*r.players} == {name, other}]
    lost = (r.forfeit and r.players[int(r.points)] == name for r in results if {*r.players} == {name, other})
    return {"won": own.count(1), "drawn": own.count(0.5), "lost": own.count(0), "forfeits": sum(lost)}
