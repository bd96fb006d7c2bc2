"""The recipe of a command: the packaged one or a file, then flags, then --set."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.recipe import build, load_toml, override

FOLDER = Path(str(files("earl") / "configs"))


def resolve(env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str] = ()) -> Config:
    """The recipe for an environment.

    Args:
        file: a recipe in place of the packaged one.
        flags: settings by their path, such as "run.steps"; those that are None were not given.
        assignments: what --set says, as `section.key=value`; it has the last word.

    Raises:
        EarlError: for an unknown environment, a recipe that is not one or is of another environment.
    """
    registry.seats(env)  # an unknown name is said before a missing recipe
    tree = load_toml(file or _packaged(env))
    settings = {"env.name": _env_of(tree) or env, **flags}
    for path, value in settings.items():
        section, key = path.split(".")
        table = tree.setdefault(section, {})
        if value is not None and isinstance(table, dict):  # anything else is refused by `build`
            table[key] = value
    config = build(override(tree, assignments))
    if config.env.name != env:
        raise EarlError(
            f"the recipe is for the environment {config.env.name!r}, not for {env!r}; "
            "name the environment that it is for, or give another recipe with --config"
        )
    return config


def _packaged(env: str) -> Path:
    path = FOLDER / f"{env}.toml"
    if not path.is_file():
        known = ", ".join(sorted(recipe.stem for recipe in FOLDER.glob("*.toml"))) or "none"
        raise EarlError(f"earl brings no recipe for {env!r} (it does for: {known}); give one with --config")
    return path


def _env_of(tree: Mapping[str, object]) -> object:
    """The environment that a recipe names; a recipe may leave it to the command line."""
    table = tree.get("env")
    return table.get("name") if isinstance(table, dict) else None
