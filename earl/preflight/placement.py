"""Arranges learner and samplers on devices as `earl plan` does, and checks that they can be built and fit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from earl.config import Config
from earl.dispatch.predicted_cost import load_at
from earl.engine.samplers import check_alone
from earl.errors import EarlError
from earl.formats import size
from earl.parallel.cost_model import OWN, CostModel, differing
from earl.parallel.footprint import LearnerBytes, Training, learner_bytes
from earl.parallel.hardware import GIB
from earl.parallel.layout import check_shared, check_split, learner_layout, splits
from earl.parallel.memory import Load, ModelShape, kv_bytes
from earl.parallel.throughput.step import VLLM
from earl.placement.costs import chosen, now
from earl.placement.ray.placement_spec import Fragment, slots_of, spec_of
from earl.preflight.cluster import Site, memory_bytes

PROCESS_BYTES = 200 << 20  # minimum of a Python process that has loaded torch and Ray


def costs_at(config: Config, shape: ModelShape, site: Site) -> CostModel:
    cluster = site.cluster if site.gpus else replace(site.cluster, gpus=0, device=None)
    return CostModel(config, shape, cluster, VLLM if site.engine == "vllm" else OWN)


def longest_load(config: Config, shape: ModelShape) -> Load:
    """A step with the longest context that a recipe allows. A limit that grows may reach a micro-batch."""
    grown = min(shape.max_positions, config.learner.micro_batch_tokens) if config.context.automatic else 0
    return load_at(config.rollout.episodes, config.context.ceiling or max(grown, config.context.first_limit))


def decided(config: Config, shape: ModelShape, site: Site) -> Config:
    """The recipe with everything that it leaves open decided, so that a run continues unchanged elsewhere. On GPUs the
    layouts are those of `earl plan` for the recipe's longest context."""
    dtype = "bfloat16" if site.gpus and "dtype" not in config.learner.model_fields_set else config.learner.dtype
    config = config.changed(placement={"kind": site.kind}, sampler={"engine": site.engine}, learner={"dtype": dtype})
    weighs = differing(config, site.engine == "vllm", dtype)
    corrected = {"correction": "token"} if weighs and "correction" not in config.algorithm.model_fields_set else {}
    if not site.gpus:
        return config.changed(algorithm=corrected)
    costs, load = costs_at(config, shape, site), longest_load(config, shape)
    learning, sampling = costs.shares(load)
    first = costs.best(costs.rollout_choices(sampling), load)
    last = costs.best_update(costs.learner_layouts(learning), load)
    return chosen(chosen(config, first), last).changed(algorithm=corrected)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a decided recipe runs, and what it needs there."""

    where: str
    gpus: int  # available to the run
    gpu: str | None  # their kind; None: no GPUs, or an unlisted kind
    fragments: tuple[Fragment, ...]  # empty in the embedded placement, where every process holds both
    update: Mapping[str, int]  # bytes of one learner rank during the update, by purpose
    rollout: Mapping[str, int]  # bytes of one sampler device during rollout
    device_bytes: int | None  # memory of a GPU; None: unknown, or no GPUs
    on_paper: bool
    idle: tuple[str, ...] = ()
    """In words, which GPUs have nothing to do in a stage, and why."""


def check_placement(config: Config, shape: ModelShape, site: Site) -> Placed:
    """Where a decided recipe runs. Raises EarlError when learner and samplers cannot be built, or do not fit."""
    place, embedded = config.placement, site.kind == "embedded"
    costs, load = costs_at(config, shape, site), longest_load(config, shape)
    check_shared(shape, learner_layout(place))
    check_split(shape, "sampler.tp", config.sampler.tp, replicated=site.engine == "vllm")
    learner = _learner_bytes(costs, load)
    if not embedded:
        if place.environments and place.max_staleness:
            raise EarlError(
                f"placement.environments = {place.environments} and placement.max_staleness = {place.max_staleness}: "
                "episodes that run ahead of the learner live with their samplers; leave one of the two out"
            )
        if site.engine != "vllm":
            check_alone(config, config.sampler.tp)
        _check_devices(config, site)
        if site.gpus:
            _check_gpu(costs, load)
        else:
            _check_hosts(costs, site, load, learner)
    device = site.cluster.device if site.gpus else None
    rollout, gpus = _sampler_bytes(costs, load, config.run.processes if embedded else place.samplers), site.cluster.gpus
    return Placed(
        where=site.cluster.where,
        gpus=gpus if site.gpus else 0,
        gpu=device.kind if device else None,
        fragments=() if embedded else spec_of(config).fragments,
        update={**learner.parts, "peak": learner.peak},
        rollout={**rollout, "peak": sum(rollout.values())},
        device_bytes=device.memory_bytes if device else None,
        on_paper=site.on_paper,
        idle=_idle(costs) if site.gpus else (),
    )


def _learner_bytes(costs: CostModel, load: Load) -> LearnerBytes:
    config, own = costs.config, now(costs.config, "update")
    if config.placement.kind != "embedded":
        return costs.learner_peak(own, costs.largest(load))
    return learner_bytes(costs.shape, Training.of(config, 1, 1, whole=True, on_host=True))


def _sampler_bytes(costs: CostModel, load: Load, copies: int) -> dict[str, int]:
    """Bytes of one device of a sampler: weights, and contexts of its copy's share of a step's episodes, those at once
    that an engine has room for."""
    engine = costs.engine(costs.config.sampler.tp)
    contexts = min(-(-load.sequences // copies), max(1, engine.kv_tokens(costs.values) // load.longest_tokens))
    return {"weights": engine.weight_bytes, "contexts": int(contexts * load.longest_tokens * engine.token_bytes)}


def _idle(costs: CostModel) -> tuple[str, ...]:
    """In words, which GPUs have nothing to do, and why."""
    gpus, sampling, learning = costs.cluster.gpus, now(costs.config, "rollout"), now(costs.config, "update")
    if costs.config.placement.kind == "colocated":
        return tuple(filter(None, (costs.idle(learning, gpus), costs.idle(sampling, gpus))))
    left = gpus - sampling.layout.size - learning.layout.size
    return (f"{left} of {gpus} GPUs idle always: neither learner nor samplers divide them",) if left > 0 else ()


def context_room(config: Config, shape: ModelShape, site: Site) -> int:
    """Tokens of the longest context that memory allows.

    On GPUs a copy of vLLM must hold one, earl's own sampler all of its share. On CPUs the keys and values of a step's
    episodes may take half of the machine's memory, or a single context all of `sampler.kv_cache_gib`.
    """
    costs, tp = costs_at(config, shape, site), config.sampler.tp
    if not site.gpus and (site.engine == "vllm" or config.sampler.cache_bytes is None):
        return memory_bytes() // 2 // (config.rollout.episodes * kv_bytes(shape))
    held = 1 if costs.paged else -(-config.rollout.episodes // config.placement.samplers)
    return costs.engine(tp).kv_tokens(costs.values) // held


def _check_devices(config: Config, site: Site) -> None:
    """Check the number of GPUs, and on a cluster of processors: Ray would wait for missing ones without end."""
    apart = config.placement.environments
    cpus = site.cluster.cpus if config.placement.address is not None else None
    if site.gpus:
        have, device, host = site.cluster.gpus, "GPUs", site.cluster.gpus_per_host
    elif cpus is not None:
        have, device, host = cpus, "CPUs", cpus
    else:
        return  # on one machine processes may share the cores
    bundles = slots_of(spec_of(config)).bundles
    need, widest = sum(bundles), max(bundles)
    if need > have:
        raise EarlError(
            f"{_asked(config)} = {need} {device}, {site.cluster.where} has {site.cluster.holds}; lower placement.dp, "
            "placement.tp, placement.cp, placement.samplers or sampler.tp, or add hosts"
        )
    if widest > host:
        raise EarlError(
            f"sampler.tp = {widest}: one copy of the sampler lies on one host, and a host of {site.cluster.where} has "
            f"{host} {device}; set sampler.tp to at most {host}"
        )
    if cpus is not None and apart > (free := cpus if site.gpus else cpus - need):
        raise EarlError(
            f"placement.environments = {apart} CPUs, {site.cluster.where} has {free} for them; lower it or add hosts"
        )


def _asked(config: Config) -> str:
    place, turns = config.placement, " in turns" if config.placement.kind == "colocated" else ""
    cp = f" x placement.cp {place.cp}" if place.cp > 1 else ""
    return (
        f"placement.dp {place.dp} x placement.tp {place.tp}{cp} and{turns} placement.samplers {place.samplers} x "
        f"sampler.tp {config.sampler.tp}"
    )


def _check_gpu(costs: CostModel, load: Load) -> None:
    """One GPU holds its part of the learner, and, taking turns or apart, its part of a sampler."""
    config, kind = costs.config, costs.device.kind
    place, most = config.placement, costs.largest(load)
    need = costs.need(now(config, "update"), most)
    if need.why_not:
        raise EarlError(
            f"the learner needs {size(need.needed_bytes)} on each GPU under {learner_layout(place).words} "
            f"({_parts(_learner_bytes(costs, load))}), one {kind} has {size(costs.memory_bytes)}; "
            f"{' or '.join(_cures(costs, most))}"
        )
    need = costs.need(now(config, "rollout"), load)
    if need.why_not:
        sampler = _sampler_bytes(costs, replace(load, sequences=1), 1)
        raise EarlError(
            f"the sampler needs {size(need.needed_bytes)} on each GPU under sampler.tp {config.sampler.tp} (weights "
            f"{size(sampler['weights'])}, one context {size(sampler['contexts'])}), and may take "
            f"{size(need.room_bytes)} of one {kind}; try a larger sampler.tp, a larger sampler.memory_share or a lower "
            "context.limit"
        )


def _cures(costs: CostModel, load: Load) -> list[str]:
    """Each change that would make the learner fit by itself; general advice when none does."""
    own, place = now(costs.config, "update"), costs.config.placement

    def suffices(dp: int, tp: int, **other: Any) -> bool:
        return not costs.obstacle(replace(own, layout=replace(own.layout, dp=dp, tp=tp), **other), load)

    tokens = own.micro_batch_tokens or 0
    halved = [("micro_batch_tokens", tokens >> by) for by in (1, 2)]
    cures = [
        f"set learner.{key} to {str(value).lower()}"
        for key, value in [("recompute", True), ("offload", True), *halved]
        if suffices(place.dp, place.tp, **{key: value})
    ]
    cures += [
        f"set placement.tp to {tp}"
        for tp in splits(costs.shape, costs.host_devices)
        if tp > place.tp and suffices(place.ranks // (tp * place.cp) or 1, tp)
    ][:1]
    more = next((place.dp << by for by in range(1, 13) if suffices(place.dp << by, place.tp)), None)
    cures += [f"take {more * place.tp * place.cp} GPUs for it, placement.dp = {more}"] if more else []
    return cures or ["choose a smaller model, or more GPUs with learner.recompute and learner.offload"]


def _check_hosts(costs: CostModel, site: Site, load: Load, learner: LearnerBytes) -> None:
    if site.cluster.memory_bytes is None:
        return
    config = costs.config
    sampler = _sampler_bytes(costs, load, config.placement.samplers)
    cache = (config.sampler.cache_bytes or GIB) if site.engine == "vllm" else sampler["contexts"]
    ranks, sampling = config.placement.ranks, config.placement.samplers * config.sampler.tp
    need = ranks * (learner.peak + PROCESS_BYTES) + sampling * (sampler["weights"] + cache + PROCESS_BYTES)
    need += config.placement.environments * PROCESS_BYTES
    have = site.cluster.memory_bytes * site.cluster.hosts
    if need > have:
        raise EarlError(
            f"{_asked(config)} = {ranks} + {sampling} processes need {size(need)} of memory, "
            f"{site.cluster.where} has {size(have)}; choose a smaller model or fewer of them"
        )


def _parts(learner: LearnerBytes) -> str:
    parts = sorted(learner.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {size(count)}" for name, count in parts[:4] if count)
