"""The runs of benchmarks: recipes, and runs that are trained or continued in a folder."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.observer import Observer
from earl.recipe import build, dump, load_toml, override
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Series
from earl.trainer import run as train

ASIDE = ("evaluate", "checkpoint")
"""Stages that are not part of a step."""


def recipe(env: str, assignments: Sequence[str]) -> Config:
    """The packaged recipe of an environment, with the assignments of `--set`."""
    registry.seats(env)  # refuses an unknown name
    tree = load_toml(Path(str(files("earl") / "configs" / f"{env}.toml")))
    tree.setdefault("env", {})["name"] = env
    return build(override(tree, assignments))


def trained(root: Path, name: str, config: Config, observer: Observer | None = None) -> RunFolder:
    """Train or continue a run to its end. Raises EarlError if it has another recipe or was stopped."""
    folder = RunFolder(root / name)
    if not folder.config.is_file():
        folder = create(root, name, dump(config))
    elif folder.config.read_text(encoding="utf-8") != dump(config):
        raise EarlError(f"{folder.path} holds a run of another recipe; give another folder with --runs")
    with lock(folder):
        progress = train(folder, config, observer)
    if not progress.finished:
        raise EarlError(f"{folder.path} was stopped at step {progress.step}; the same command goes on from there")
    return folder


def by_step(timings: Series, first: int, last: int) -> list[dict[str, float]]:
    """Seconds by stage of each step from `first` to `last`."""
    stages = {name: dict(points) for name, points in timings.items() if name not in ASIDE}
    steps = range(first, last + 1)
    return [{name: seconds[step] for name, seconds in stages.items() if step in seconds} for step in steps]
