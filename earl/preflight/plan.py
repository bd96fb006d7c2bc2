"""The plan of a run, once its recipe has passed every check."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from earl import trackers
from earl.config import Config
from earl.engine import model
from earl.engine.tokenizer import character_tokenizer
from earl.preflight.machine import check_ceiling, check_disk, check_memory, checkpoint_bytes
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
    first_prompt_tokens: int
    """The longest first prompt met."""
    checkpoint_bytes: int


def preflight(config: Config, root: Path) -> Plan:
    """Check a recipe before its run is created in the folder `root`. Nothing is written but copies of hub models.

    Raises:
        EarlError: for the first rule that the recipe breaks.
    """
    check_world(config)
    check_batches(config)
    with setting("track"):
        trackers.check(config.track.to, config.track.prometheus_port)
    shape = model.shape(config.model)
    check_memory(config, shape)
    size = checkpoint_bytes(config, shape)
    check_disk(root, size)
    path = config.model.path
    # Weights made from scratch cannot fail; those of a folder may be missing or broken, so they are read.
    policy = model.load(path) if path else model.Policy(None, character_tokenizer())
    ceiling = check_ceiling(config, shape)
    first = check_speech(config, policy, shape.max_positions)
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
    )


def settled(config: Config, plan: Plan) -> Config:
    """The recipe with the ceiling of an automatic context limit written out, so that a run goes on alike elsewhere."""
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
    check_speech(config, policy, policy.model.config.get_text_config().max_position_embeddings)
