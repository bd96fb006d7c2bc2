"""The recipe of a command: the packaged one or a file, then flags, then --set."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.recipe import build, load_toml, override

FOLDER = Path(str(files("earl") / "configs"))
MOVABLE = ("placement", "sampler")
"""What may change when a run is continued: checkpoints do not depend on where they were written."""
DECIDED = {"placement": {"address", "gpus", "dp", "tp", "cp", "samplers"}, "sampler": {"engine", "tp"}}
"""What is decided anew when a run is placed anew."""


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


def names_address(flags: Mapping[str, object], assignments: Sequence[str]) -> bool:
    """Whether a cluster's address was given on this command line, and not by a recipe alone."""
    return flags.get("placement.address") is not None or "address" in override({}, assignments).get("placement", {})


def elsewhere(tree: dict[str, Any], where: Mapping[str, object], assignments: Sequence[str]) -> Config:
    """A run's recipe, changed in nothing but where it runs.

    Placed anew, it is as open as a new recipe: how often learner and samplers are copied and split is decided again,
    unless it is named too.

    Raises:
        EarlError: for an assignment to another section.
    """
    stored = tree.get("placement", {}).get("address")  # to name it once more permits it, and changes nothing
    known = {"placement.address": stored}
    given = {path: value for path, value in where.items() if value is not None and value != known.get(path)}
    changed = override({}, assignments)
    for section, table in changed.items():
        if section not in MOVABLE:
            key = f"{section}.{next(iter(table))}"
            raise EarlError(
                f"--set {key}: a run is continued with its own recipe, and only [placement] and [sampler] may change; "
                "leave it out, or start a new run without --resume"
            )
    if given or "kind" in changed.get("placement", {}):
        for section, keys in DECIDED.items():
            tree[section] = {key: value for key, value in tree.get(section, {}).items() if key not in keys}
    for path, value in given.items():
        section, key = path.split(".")
        tree.setdefault(section, {})[key] = value
    return build(override(tree, assignments))


def differences(before: Config, after: Config) -> Iterator[str]:
    """What differs, as `section.key = value` of the later one."""
    for section in type(after).model_fields:
        old, new = getattr(before, section), getattr(after, section)
        for key in type(new).model_fields:
            if getattr(old, key) != getattr(new, key):
                yield f"{section}.{key} = {getattr(new, key)!r}"


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
