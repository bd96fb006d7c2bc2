"""Makes a command's recipe: the packaged one or a file, then flags, then --set."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from earl.agents.scripted import registry as scripted
from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.recipe import build, load_toml, override

FOLDER = Path(str(files("earl") / "configs"))
MOVABLE = ("placement", "sampler")
"""Sections that may change when a run is resumed: checkpoints do not depend on where they were written."""
DECIDED = {"placement": {"address", "gpus", "dp", "tp", "cp", "samplers"}, "sampler": {"engine", "tp"}}
"""Keys that are decided again when the placement changes."""


def resolve(env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str] = ()) -> Config:
    """Make the recipe for an environment: packaged or `file`, then `flags` by path, then `assignments` of --set.

    A flag of None was not given. Raises EarlError for an unknown environment, and an invalid or wrong recipe.
    """
    registry.remember(env)
    registry.seats(env)  # report an unknown name before a missing recipe
    tree = load_toml(file or _packaged(env))
    if file is None and registry.is_foreign(env) and "random" in scripted.names(env):
        tree["warm_start"] = {"steps": 20, "teacher": "random", "noise": 0.0}  # a new model learns how an action looks
    table = tree.get("env")
    settings = {"env.name": (table.get("name") if isinstance(table, dict) else None) or env, **flags}
    config = build(override(_set(tree, settings), assignments))
    if config.env.name != env:
        raise EarlError(
            f"the recipe is for the environment {config.env.name!r}, not for {env!r}; "
            "name the environment that it is for, or give another recipe with --config"
        )
    return config


def names_address(flags: Mapping[str, object], assignments: Sequence[str]) -> bool:
    """Whether this command line names a cluster's address, not only the recipe."""
    return flags.get("placement.address") is not None or "address" in override({}, assignments).get("placement", {})


def elsewhere(tree: dict[str, Any], where: Mapping[str, object], assignments: Sequence[str]) -> Config:
    """A run's recipe with another placement only. Raises EarlError for an assignment to another section.

    With a new placement the number and split of learner and samplers is decided again, unless it is given too.
    """
    stored = tree.get("placement", {}).get("address")  # giving the same address again is allowed and changes nothing
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
    return build(override(_set(tree, given), assignments))


def differences(before: Config, after: Config) -> Iterator[str]:
    for section in type(after).model_fields:
        old, new = getattr(before, section), getattr(after, section)
        for key in type(new).model_fields:
            if getattr(old, key) != getattr(new, key):
                yield f"{section}.{key} = {getattr(new, key)!r}"


def _packaged(env: str) -> Path:
    path = FOLDER / f"{env}.toml"
    if not path.is_file():
        if registry.is_foreign(env):
            return FOLDER / "_own.toml"
        known = ", ".join(sorted(recipe.stem for recipe in FOLDER.glob("[!_]*.toml"))) or "none"
        raise EarlError(f"earl brings no recipe for {env!r} (it does for: {known}); give one with --config")
    return path


def _set(tree: dict[str, Any], settings: Mapping[str, object]) -> dict[str, Any]:
    for path, value in settings.items():
        section, key = path.split(".")
        table = tree.setdefault(section, {})
        if value is not None and isinstance(table, dict):  # `build` refuses anything else
            table[key] = value
    return tree
