"""The costs and candidate layouts of a run, and its recipe with another layout."""

from collections.abc import Sequence
from itertools import product

from earl.config import Config, LearnerConfig
from earl.engine.model import reference_shape
from earl.parallel.cost_model import OWN, CostModel
from earl.parallel.hardware import of_gpus
from earl.parallel.layout import Choice, Layout, Stage, learner_layout
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.step import VLLM
from earl.placement.ray.inventory import here, inventory


def costs_of(config: Config, shape: ModelShape) -> CostModel:
    """The cost model of a run on its devices: those that the recipe names, else those of its cluster or machine."""
    place = config.placement
    cluster = of_gpus(place.gpus) if place.gpus else inventory(place.address) if place.address else here(0)
    engine = config.sampler.engine
    served = engine == "vllm" or (engine == "auto" and cluster.gpus > 0)
    return CostModel(config, shape, cluster, VLLM if served else OWN, reference=reference_shape(config))


def candidates(costs: CostModel) -> dict[Stage, Sequence[Choice]]:
    """Layouts by stage, the current one first, all of as many devices. The learner's ranks also prepare experience.

    cp, micro-batches, recomputation and offloading, which spares a GPU's memory alone, are changed where the recipe
    leaves them at their defaults.
    """
    config = costs.config
    place, learner = config.placement, config.learner
    devices = place.samplers * config.sampler.tp
    layouts = [
        Layout(place.ranks // (tp * cp), tp, cp, place.ep, place.replicas)
        for cp in ([place.cp] if place.cp > 1 else [cp for cp in range(1, place.ranks + 1) if place.ranks % cp == 0])
        for tp in costs.splits("update", place.ranks // cp)
        if place.ranks // cp % tp == 0
    ]
    recompute = [True] if learner.recompute else [False, True]
    offload = [learner.offload] if learner.offload or costs.on_host else [False, True]
    update = [
        Choice("update", layout, tokens, again, away)
        for layout, again, away in product(layouts, recompute, offload)
        for tokens in _micro_batches(config, layout)
    ]
    splits = [tp for tp in costs.splits("rollout", devices) if devices % tp == 0]
    rollout = [Choice("rollout", Layout(devices // tp, tp)) for tp in splits]
    own: dict[Stage, list[Choice]] = {"update": update, "rollout": rollout}
    return {stage: [*dict.fromkeys((current_choice(config, stage), *choices))] for stage, choices in own.items()}


def _micro_batches(config: Config, layout: Layout) -> list[int]:
    """The recipe's, and where it is the default half and twice as many tokens, if a rank's rows between two optimizer
    steps may be more than the smaller one of two."""
    learner, longest = config.learner, config.context.first_limit
    own, share = learner.micro_batch_tokens, config.rollout.episodes * longest // layout.dp // learner.minibatches
    if own != LearnerConfig.model_fields["micro_batch_tokens"].default:
        return [own]
    return [own, *([own // 2] if longest <= own // 2 < share else []), *([2 * own] if own < share else [])]


def current_choice(config: Config, stage: Stage) -> Choice:
    place, learner = config.placement, config.learner
    if stage == "rollout":
        return Choice("rollout", Layout(place.samplers, config.sampler.tp))
    return Choice("update", learner_layout(place), learner.micro_batch_tokens, learner.recompute, learner.offload)


def with_choice(config: Config, choice: Choice) -> Config:
    layout = choice.layout
    if choice.stage == "rollout":
        return config.changed(placement={"samplers": layout.dp}, sampler={"tp": layout.tp})
    learner = {name: getattr(choice, name) for name in ("micro_batch_tokens", "recompute", "offload")}
    return config.changed(placement=layout.settings, learner=learner)
