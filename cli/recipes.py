"""Makes a command's recipe: the packaged one or a file, then what a pretrained model needs, then flags, then --set."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from earl.agents.scripted import registry as scripted
from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.recipe import build, load_toml, made_by_earl, override

FOLDER = Path(str(files("earl") / "configs"))
OWN = FOLDER / "_own.toml"
"""For an environment that has no recipe."""
MOVABLE = ("placement", "sampler")
"""Sections that may change when a run is resumed: checkpoints do not depend on where they were written."""
DECIDED = {"placement": {"address", "gpus", "dp", "tp", "cp", "samplers"}, "sampler": {"engine", "tp"}}
"""Keys that are decided again when the placement changes."""


MATTER = (
    *("learner.learning_rate", "learner.final_learning_rate", "run.steps", "warm_start.steps", "warm_start.distill"),
    *("rollout.episodes", "rollout.group_size", "algorithm.name", "algorithm.entropy", "algorithm.kl"),
    *("agent.instructions", "agent.max_turn_tokens", "agent.retries", "agent.parser", "agent.thinking"),
    "context.limit",
)
"""What a dry run names with where it came from."""


Layer = tuple[str, dict[str, Any]]
"""Where settings come from, and these."""


def resolve(env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str] = ()) -> Config:
    """Make the recipe for an environment: packaged or `file`, what a pretrained model needs where the packaged one is
    for a new model, then `flags` by path, then `assignments` of --set.

    A flag of None was not given. Raises EarlError for an unknown environment, and an invalid or wrong recipe.
    """
    config = build(layered(env, file, flags, assignments))
    for name in config.code:
        if any(name in assignment for assignment in assignments):
            registry.remember(name)
    if config.env.name != env:
        raise EarlError(
            f"the recipe is for the environment {config.env.name!r}, not for {env!r}; "
            "name the environment that it is for, or give another recipe with --config"
        )
    return config


def layered(
    env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """What `resolve` makes a recipe of."""
    tree: dict[str, Any] = {}
    for _, table in _recipes(env, file, flags, assignments):
        for section, own in table.items():
            under = tree.get(section)
            tree[section] = {**under, **own} if isinstance(under, dict) and isinstance(own, dict) else own
    return override(_set(tree, flags), assignments)


def _recipes(env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str]) -> list[Layer]:
    """The recipes of a command line, each over those before it."""
    registry.remember(env)
    registry.seats(env)  # an unknown name is refused
    packaged = FOLDER / f"{env}.toml"
    path = file or (packaged if packaged.is_file() else OWN)
    tree = load_toml(path)
    table = tree.get("env")
    name = (table.get("name") if isinstance(table, dict) else None) or env
    found: list[Layer] = [(str(file) if file else f"recipe {path.name}", _set(tree, {"env.name": name}))]
    if path == OWN and registry.seats(env) == 2:
        found.append(("a game for two", {"env": {"opponents": {"random": 1.0}}, "evaluate": {"opponents": ["random"]}}))
    if path == OWN and "random" in scripted.names(env):
        # A new model learns how an action looks.
        found.append(("its random_action", {"warm_start": {"steps": 20, "teacher": "random", "noise": 0.0}}))
    model = override(_set({}, flags), assignments).get("model")
    given = model.get("path") if isinstance(model, dict) else None
    if file is None and isinstance(given, str) and not made_by_earl(given):
        found.append(("for a pretrained model", load_toml(FOLDER / "_pretrained.toml")))
    return found


def origins(
    config: Config, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str]
) -> Iterator[tuple[str, object, str]]:
    """Each setting of MATTER with its value and where it came from."""
    layers = [("the command line", _set({}, {path: value for path, value in flags.items() if value is not None}))]
    layers += [("--set", override({}, assignments))]
    found = [*_recipes(config.env.name, file, flags, assignments), *layers]
    for path in MATTER:
        section, key = path.split(".")
        named = [source for source, tree in found if isinstance(tree.get(section), dict) and key in tree[section]]
        yield path, getattr(getattr(config, section), key), named[-1] if named else "earl's default"


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


def _set(tree: dict[str, Any], settings: Mapping[str, object]) -> dict[str, Any]:
    for path, value in settings.items():
        section, key = path.split(".")
        table = tree.setdefault(section, {})
        if value is not None and isinstance(table, dict):  # `build` refuses anything else
            table[key] = value
    return tree
