"""Resolves a name on the command line: a run or a scripted opponent."""

import difflib
from pathlib import Path

from earl.agents.scripted import registry as scripted
from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.runs.folder import RunFolder, listing, open_existing


def find_run(root: Path, name: str) -> RunFolder | None:
    """The run of that name in `root`, else at that path; None if there is none."""
    for path in (root / name, Path(name)):
        if RunFolder(path).config.is_file():
            return RunFolder(path)
    return None


def need_run(root: Path, name: str) -> RunFolder:
    return find_run(root, name) or open_existing(root / name)


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
