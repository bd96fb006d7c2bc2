"""What a run's stages may be run in, and the recipe that a choice makes of another one."""

from collections.abc import Sequence
from typing import Any

from earl.config import Config
from earl.parallel.arrangement import splits
from earl.parallel.choice import Choice, Stage
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape


def candidates(config: Config, shape: ModelShape) -> dict[Stage, Sequence[Choice]]:
    """By stage, what is set first. Experience is prepared by the ranks that learn from it; cp stays as it is set."""
    place, learner = config.placement, config.learner
    ranks, devices = place.dp * place.tp, place.samplers * config.sampler.tp
    update = [
        Choice("update", Layout(ranks // tp, tp, place.cp), learner.micro_batch_tokens, recompute, learner.offload)
        for tp in splits(shape, ranks)
        if ranks % tp == 0
        for recompute in ([True] if learner.recompute else [False, True])
    ]
    rollout = [Choice("rollout", Layout(devices // tp, tp)) for tp in splits(shape, devices) if devices % tp == 0]
    return {"update": _first(update, now(config, "update")), "rollout": _first(rollout, now(config, "rollout"))}


def now(config: Config, stage: Stage) -> Choice:
    """What a recipe sets."""
    place, learner = config.placement, config.learner
    if stage == "rollout":
        return Choice("rollout", Layout(place.samplers, config.sampler.tp))
    layout = Layout(place.dp, place.tp, place.cp)
    return Choice("update", layout, learner.micro_batch_tokens, learner.recompute, learner.offload)


def chosen(config: Config, choice: Choice) -> Config:
    """A recipe with one stage's layout replaced."""
    layout = choice.layout
    if choice.stage == "rollout":
        return _with(config, placement={"samplers": layout.dp}, sampler={"tp": layout.tp})
    learner = {
        "micro_batch_tokens": choice.micro_batch_tokens,
        "recompute": choice.recompute,
        "offload": choice.offload,
    }
    return _with(config, placement={"dp": layout.dp, "tp": layout.tp}, learner=learner)


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()}
    )


def _first(choices: Sequence[Choice], first: Choice) -> list[Choice]:
    return [first, *(choice for choice in choices if choice != first)]
