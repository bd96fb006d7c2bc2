"""The plan of a run, once its recipe has passed every check."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from earl import trackers
from earl.config import Config
from earl.engine import model
from earl.engine.source import fetching, is_here, known_shape
from earl.engine.tokenizer import character_tokenizer
from earl.preflight import placement
from earl.preflight.machine import check_ceiling, check_disk, check_memory, checkpoint_bytes
from earl.preflight.options import check_options
from earl.preflight.placement import Placed, check_placement, context_room
from earl.preflight.site import Site, survey
from earl.preflight.speech import check_speech
from earl.preflight.world import check_batches, check_world, setting


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do, in numbers.

    Example:
        prompts * group_size == episodes   # 24 prompts x 16 = 384 episodes per step
    """

    env: str
    opponents: Mapping[str, float]
    """Opponent → share of the episodes, together 1; empty in tool tasks."""
    algorithm: str
    prompts: int
    group_size: int
    episodes: int
    """Per step."""
    warm_start_steps: int
    steps: int
    """Of reinforcement learning."""
    model: str
    """A folder or hub id; "new" for a small model made from scratch."""
    parameters: int
    processes: int
    context_limit: int
    """Of the first step."""
    context_ceiling: int | None
    """How far an automatic limit may rise; None: the limit is fixed."""
    first_prompt_tokens: int | None
    """The longest first prompt met; None: the tokenizer is not here, so that what is said was not checked."""
    checkpoint_bytes: int
    placed: Placed


def preflight(config: Config, root: Path, dry: bool = False) -> Plan:
    """Check a recipe before its run is created in the folder `root`. Nothing is written but copies of hub models.

    Args:
        dry: whether the run is only planned: then GPUs that the recipe names may be elsewhere, a well-known model's
            words are checked only where its tokenizer is here, and neither a cluster nor the hub is contacted.

    Raises:
        EarlError: for the first rule that the recipe breaks.
    """
    with fetching(not dry):
        return _checked(config, root, dry)


def _checked(config: Config, root: Path, dry: bool) -> Plan:
    check_world(config)
    site = survey(config, dry)
    check_batches(config, site.kind == "embedded")
    with setting("track"):
        trackers.check(config.track.to, config.track.prometheus_port)
    check_options(config, site)
    shape = model.shape(config.model)
    placed = check_placement(config, shape, site)
    if site.kind == "embedded":
        check_memory(config, shape)
    path = config.model.path
    size = checkpoint_bytes(config, shape)
    if not site.on_paper:
        check_disk(root, size)
    ceiling = check_ceiling(config, shape, context_room(config, shape, placed))
    first = check_speech(config, _speaker(config, site, dry), shape)
    total = sum(config.env.opponents.values())
    return Plan(
        env=config.env.name,
        opponents={name: share / total for name, share in config.env.opponents.items()},
        algorithm=config.algorithm.name,
        prompts=config.rollout.prompts,
        group_size=config.rollout.group_size,
        episodes=config.rollout.episodes,
        warm_start_steps=config.warm_start.steps,
        steps=config.run.steps,
        model=path or "new",
        parameters=shape.parameters,
        processes=config.run.processes,
        context_limit=config.context.first_limit,
        context_ceiling=ceiling,
        first_prompt_tokens=first,
        checkpoint_bytes=size,
        placed=placed,
    )


def _speaker(config: Config, site: Site, dry: bool) -> model.Policy | None:
    """Who speaks: whole in an embedded run, which loads the model here; else its tokenizer. None: it is not here."""
    path = config.model.path
    if path is None:
        return model.Policy(None, character_tokenizer())
    if dry and known_shape(path) is not None and not is_here(path):
        return None
    if site.kind == "embedded" and not (dry and not Path(path).exists()):  # a dry run does not fetch weights
        return model.load(path)  # weights may be missing or broken, so they are read
    return model.Policy(None, model.tokenizer_of(config.model))


def settled(config: Config, plan: Plan) -> Config:
    """The recipe with what the preflight decided written out, so that a run goes on alike elsewhere."""
    config = placement.settled(config, plan.placed)
    if plan.context_ceiling is None:
        return config
    context = config.context.model_copy(update={"ceiling": plan.context_ceiling})
    return config.model_copy(update={"context": context})


def check_player(config: Config, policy: model.Policy) -> None:
    """Check that a loaded model can play by a recipe's rules: the part of the preflight that is not about training.

    Raises:
        EarlError: for the first rule that the recipe breaks.
    """
    check_world(config)
    check_speech(config, policy, model.shape_of(policy.model))
