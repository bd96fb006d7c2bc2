"""Loads the run or the model that a command names, ready to play. torch is imported only once the names stand."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from earl.agents.scripted import registry as scripted
from earl.agents.scripted.registry import RUN
from earl.cli.recipes import resolve
from earl.cli.text import clean
from earl.config import Config
from earl.engine.source import HUB_ID
from earl.envs import registry
from earl.errors import EarlError
from earl.league import League
from earl.parallel.memory import known
from earl.recipe import build
from earl.rollout.drivers import BatchSampler, Greedy
from earl.rollout.tasks import EpisodeFactory
from earl.runs.folder import RunFolder, find_run, listing, open_run
from earl.runs.summary import chosen_checkpoint, context_limit

if TYPE_CHECKING:
    from earl.placement.embedded import EvalPolicy

Rules = tuple[Path | None, Sequence[str]]
"""The values of --config and --set."""
UNCHANGED: Rules = (None, ())


def contestant(
    root: Path, player: str, env: str | None, checkpoint: str | None = None, rules: Rules = UNCHANGED
) -> "tuple[Config, EvalPolicy]":
    """Load a run, or the folder or hub id of a model. Raises EarlError if there is none, or an option does not apply.

    `checkpoint` of a run is "best", "last" or a step; `rules` change the packaged recipe for a model.
    """
    folder = find_run(root, player)
    if folder is not None:
        if any(rules):
            raise EarlError(f"{player!r} is a run and plays by its own recipe; leave out --config and --set")
        return of_run(folder, env, checkpoint)
    if not Path(player).exists() and not HUB_ID.fullmatch(player) and known(player) is None:
        try:
            open_run(root, player)
        except EarlError as error:
            raise EarlError(f"{error}; a model is a folder or a hub id, ORGANISATION/NAME") from error
    if checkpoint is not None:
        raise EarlError(f"{player!r} is a model, not a run; leave out --checkpoint")
    config = _recipe(player, env, rules)

    from earl.engine.model import load
    from earl.placement.embedded import greedy_policy
    from earl.preflight import check_player

    policy = load(player)
    check_player(config, policy)
    return config, greedy_policy(config, policy)


def league(root: Path, players: Sequence[str], env: str | None) -> League:
    """Runs, which play by their best checkpoints, checkpoints run:NAME@STEP, and scripted opponents, in the environment
    of the first run. Raises EarlError for a name that is none of these, and for a run of another environment."""
    known = {name: own for name in players if (own := _checkpoint(root, name))}
    env = env or next((world.env for world, _ in known.values()), None)
    if env is None:
        raise EarlError(f"none of {', '.join(players)} is a run; say with --env what they play")
    for name in players:
        if name in known and known[name][0].of(env).env != env:
            raise EarlError(f"{name!r} plays {known[name][0].env}, not {env}; leave it out, or name another --env")
        if name not in known and name.partition("@")[0].partition(":")[0] not in scripted.names(env):
            raise unknown_player(root, name, env)
    worlds = {name: world for name, (world, _) in known.items()}
    if not worlds:
        return League(env, {}, worlds, None)

    from earl.placement.fragment import WithOpponents

    options = next(iter(worlds.values())).of(env).options
    samplers = {name: sampler for name, (_, sampler) in known.items()}
    return League(env, options, worlds, WithOpponents(next(iter(samplers.values())), samplers))


def _checkpoint(root: Path, name: str) -> tuple[EpisodeFactory, BatchSampler] | None:
    run, at, step = name.removeprefix(RUN).rpartition("@") if name.startswith(RUN) else (name, "@", "best")
    folder = find_run(root, run)
    if folder is None or not at:
        return None

    from earl.placement.fragment import load_opponent

    return load_opponent(f"{RUN}{folder.path.resolve()}@{chosen_checkpoint(folder, step).step}")


def behind(url: str, name: str, model: str | None, env: str | None, rules: Rules) -> "tuple[Config, EvalPolicy]":
    """A model behind a server, ready to play by the recipe of an environment.

    `name` is a folder or hub id, for its tokenizer; `model` is the name that the server knows, if different. Raises
    EarlError if the server does not answer or does not know the model.
    """
    config = _recipe(name, env, rules)

    from earl.engine.served import served_sampler
    from earl.placement.embedded import EvalPolicy
    from earl.placement.fragment import episode_factory

    sampler = served_sampler(url, name, model)
    return config, EvalPolicy(episode_factory(config, sampler.tokenizer), Greedy(sampler))


def _recipe(name: str, env: str | None, rules: Rules) -> Config:
    if env is None:
        raise EarlError(f"{name!r} is no run; of a model say with --env where it plays")
    return resolve(env, rules[0], {}, rules[1])


def of_run(folder: RunFolder, env: str | None, checkpoint: str | None = None) -> "tuple[Config, EvalPolicy]":
    config = in_env(folder, build(folder.recipe()), env)
    chosen = chosen_checkpoint(folder, checkpoint or "best")
    click.echo(clean(f"{folder.name}, step {chosen.step}: {chosen.signed.said}"), err=True)

    from earl.engine.model import load
    from earl.placement.embedded import greedy_policy

    return config, greedy_policy(config, load(chosen.path), context_limit(chosen))


def in_env(folder: RunFolder, config: Config, env: str | None) -> Config:
    """The run's recipe for one of its environments alone. Raises EarlError if it was not trained in `env`."""
    trained = {one.env.name: one for one in config.each_env()}
    if env is not None and env not in trained:
        registry.seats(env)
        known = " or ".join(trained)
        raise EarlError(f"run {folder.name!r} was trained in {' and '.join(trained)}, not in {env}; name {known}")
    return trained[env or config.env.name]


def unknown_player(root: Path, name: str, env: str) -> EarlError:
    """The error for a name that is neither a run nor an opponent, with the nearest of both."""
    runs = [run.name for run in listing(root)]
    opponents = scripted.names(env) if registry.seats(env) > 1 else ()
    near = difflib.get_close_matches(name, [*runs, *opponents], n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    known = f"Runs in {root}: {', '.join(runs[-10:]) or 'none'}. Opponents in {env}: {', '.join(opponents) or 'none'}"
    return EarlError(f"{name!r} is neither a run nor an opponent{hint} {known}")
