"""Checks of environment, players and algorithm, and that batch sizes agree."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from earl.agents.scripted.registry import agent, player
from earl.algorithms.registry import algorithm
from earl.config import AlgorithmConfig, Config
from earl.envs import registry
from earl.errors import EarlError, boundary
from earl.evaluate import ANY

GIVEN = {"seat": "both seats are played in turn", "opponent": "name opponents in [env.opponents]"}
"""Arguments of an environment that come from the episode."""


@contextmanager
def outside(what: str, cure: str) -> Iterator[None]:
    """Turn faults of foreign code into EarlError; errors that already are one pass unchanged."""
    refused: EarlError | None = None
    with boundary() as fault:
        try:
            yield
        except EarlError as error:
            refused = error
    if refused:
        raise refused
    if fault.message:
        raise EarlError(f"{what}: {fault.message}; {cure}")


def check_world(config: Config) -> None:
    """Check environment, options, opponents, teacher, algorithm and history policy.
    Raises EarlError for an unknown name, or one that does not fit the environment."""
    env = config.env.name
    seats = registry.seats(env)
    with outside(f"env.options {config.env.options} of {env}", f"see `earl envs show {env}`"):
        _check_options(env, config.env.options)
    _check_met("env.opponents", config.env.opponents, env, needed=seats > 1)
    _check_met("warm_start.opponents", config.warm_start.opponents, env)
    _check_met("evaluate.opponents", config.evaluate.opponents, env, needed=seats > 1)
    if config.warm_start.steps:
        with setting("warm_start.teacher"):
            agent(config.warm_start.teacher, env)
    if seats == 1 and config.agent.history == "board_only":
        raise EarlError(
            f"agent.history = 'board_only' forgets all but the last observation, which in {env} does not hold "
            "the task; it is for board games: set agent.history to 'full'"
        )
    _check_algorithm(config.algorithm, config.rollout.group_size)


def check_batches(config: Config, embedded: bool) -> None:
    """Check that every process, update and micro-batch has data. Raises EarlError for contradictory sizes.
    An `embedded` run has `run.processes` processes."""
    rollout, learner, warm, place = config.rollout, config.learner, config.warm_start, config.placement
    groups = ("rollout.episodes / rollout.group_size", rollout.prompts)
    processes = config.run.processes if embedded else 1
    pairs = [
        ("learner.minibatches", learner.minibatches, "rollout.episodes", rollout.episodes),
        ("run.processes", processes, *groups),
        ("placement.samplers", place.samplers, *groups),
        ("placement.environments", place.environments, *groups),
        ("context.limit", config.context.first_limit, "learner.micro_batch_tokens", learner.micro_batch_tokens),
    ]
    if warm.steps:
        pairs += [
            ("warm_start.minibatches", warm.minibatches, "warm_start.episodes", warm.episodes),
            ("run.processes", processes, "warm_start.episodes", warm.episodes),
        ]
    for part, size, whole, room in pairs:
        if size > room:
            raise EarlError(f"{part} = {size} must not be larger than {whole} = {room}; lower it or raise the other")


def _check_options(env: str, options: Mapping[str, object]) -> None:
    """Options are known, have the type of their defaults, and give an environment that can be reset."""
    for option, cure in GIVEN.items():
        if option in options:
            raise EarlError(f"env.options.{option} is given by each episode; leave it out: {cure}")
    for option, default in registry.spec(env).options.items():
        given = options.get(option, default)
        if kind(given) != kind(default) and default is not None:
            raise EarlError(f"env.options.{option} = {given!r} must be {kind(default)}, as its default {default!r} is")
    registry.make(env, **options).reset(seed=0)


def kind(value: object) -> str:
    """The type of a setting in words; int and float are both numbers."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), type(value).__name__)


def _check_met(key: str, names: Iterable[str], env: str, needed: bool = False) -> None:
    """Opponents exist, are unique, and are present if `needed`."""
    listed = list(names)
    if needed and not listed:
        raise EarlError(f"{key} is empty, but {env} is played against somebody; name one, such as random")
    for name in listed:
        if listed.count(name) > 1:
            raise EarlError(f"{key} names {name!r} twice; name each opponent once")
        if name == ANY and key == "evaluate.opponents":
            continue
        with setting(key):
            player(name, env)


def _check_algorithm(config: AlgorithmConfig, group_size: int) -> None:
    with setting("algorithm.name"):
        algorithm(config.name)
    if group_size == 1 and config.name != "ppo":
        raise EarlError(
            f"rollout.group_size = 1: {config.name} compares the episodes of a group, and one alone teaches nothing; "
            "set it to 2 or more"
        )


@contextmanager
def setting(key: str) -> Iterator[None]:
    """Prefix errors with the setting's name."""
    try:
        yield
    except EarlError as error:
        raise EarlError(f"{key}: {error}") from error
