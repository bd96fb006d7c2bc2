"""Arranges learner and samplers on devices, and checks that they fit: device counts, splits of heads, memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from earl.config import Config
from earl.engine.samplers import check_alone
from earl.errors import EarlError
from earl.parallel.footprint import FLOAT_BYTES, LearnerBytes, SamplerBytes, Training, learner_bytes, sampler_bytes
from earl.parallel.hardware import GIB, Device
from earl.parallel.layout import check_split, fits, shares, smallest, splits
from earl.parallel.memory import ModelShape, kv_bytes
from earl.placement.ray.placement_spec import Fragment, slots_of, spec_of
from earl.preflight.cluster import Site, memory_bytes, size

# The arrangement: the recipe's settings, and on GPUs a simple choice of what is left open: the smallest split of one
# copy that fits, for learner and sampler each, then as many copies as there are GPUs.

UNKNOWN_BYTES = 1 << 62
"""Memory of a GPU of an unlisted kind: nothing is refused."""
PROCESS_BYTES = 200 << 20  # minimum of a Python process that has loaded torch and Ray


def decided(config: Config, shape: ModelShape, site: Site) -> Config:
    """The recipe with everything that it leaves open decided, so that a run continues unchanged elsewhere."""
    dtype = "bfloat16" if site.gpus and "dtype" not in config.learner.model_fields_set else config.learner.dtype
    config = config.changed(placement={"kind": site.kind}, sampler={"engine": site.engine}, learner={"dtype": dtype})
    if not site.gpus:
        return config
    place, shared, host = config.placement, site.kind == "colocated", site.cluster.gpus_per_host
    given, cp = place.model_fields_set, place.cp
    device_bytes = site.cluster.device.memory_bytes if site.cluster.device else UNKNOWN_BYTES
    tp, sampler_tp, dp, samplers = place.tp, config.sampler.tp, place.dp, place.samplers
    if "tp" not in config.sampler.model_fields_set and site.engine == "vllm":
        room = sampler_room(config, device_bytes)
        sampler_tp = smallest(
            [size for size in splits(shape, host, replicated=True) if host % size == 0],
            lambda size: of_sampler(config, shape, size, 1).least <= room,
        )
    learning, sampling = shares(site.cluster, shared)
    if not shared and "samplers" in given:
        learning = max(1, site.cluster.gpus - samplers * sampler_tp)
    elif not shared and "dp" in given:
        sampling = site.cluster.gpus - place.ranks
    if "tp" not in given:
        tp = smallest(
            [size for size in splits(shape, host) if host % size == 0],
            lambda size: fits(of_learner(config, shape, site, learning // (size * cp) or 1, size).peak, device_bytes),
        )
    if "dp" not in given:
        dp = max(1, learning // (tp * cp))
    if "samplers" not in given:
        samplers = max(1, min(sampling // sampler_tp, config.rollout.prompts))
    return config.changed(placement={"dp": dp, "tp": tp, "samplers": samplers}, sampler={"tp": sampler_tp})


def of_learner(config: Config, shape: ModelShape, site: Site, dp: int, tp: int) -> LearnerBytes:
    where = {"cp": config.placement.cp, "whole": site.kind == "embedded", "on_host": not site.gpus}
    return learner_bytes(shape, Training.of(config, dp, tp, **where))


def of_sampler(config: Config, shape: ModelShape, tp: int, samplers: int) -> SamplerBytes:
    """Memory of one device of a sampler, which holds its copy's share of a step's episodes."""
    longest = config.context.ceiling or config.context.first_limit
    return sampler_bytes(shape, tp, _sampled_bytes(config), longest, -(-config.rollout.episodes // samplers))


def _sampled_bytes(config: Config) -> int:
    return FLOAT_BYTES[config.learner.dtype if config.sampler.engine == "vllm" else "float32"]


def sampler_room(config: Config, device_bytes: int) -> int:
    """Memory of a GPU that a sampler may use."""
    return int(device_bytes * config.sampler.memory_share) if config.sampler.engine == "vllm" else device_bytes


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


def check_placement(config: Config, shape: ModelShape, site: Site) -> Placed:
    """Where a decided recipe runs. Raises EarlError when learner and samplers cannot fit."""
    place, device = config.placement, site.cluster.device if site.gpus else None
    vllm, embedded = site.engine == "vllm", site.kind == "embedded"
    check_split(shape, "placement.tp", place.tp, replicated=False)
    check_split(shape, "sampler.tp", config.sampler.tp, replicated=vllm)
    learner = of_learner(config, shape, site, place.dp, place.tp)
    players = config.run.processes if embedded else place.samplers
    sampler = of_sampler(config, shape, config.sampler.tp, players)
    if not embedded:
        if place.environments and place.max_staleness:
            raise EarlError(
                f"placement.environments = {place.environments} and placement.max_staleness = {place.max_staleness}: "
                "episodes that run ahead of the learner live with their samplers; leave one of the two out"
            )
        if not vllm:
            check_alone(config, config.sampler.tp)
        _check_devices(config, site)
        if device:
            _check_gpu(config, shape, site, device, learner, sampler)
        elif not site.gpus:
            _check_hosts(config, site, learner, sampler)
    return Placed(
        where=site.cluster.where,
        gpus=site.cluster.gpus if site.gpus else 0,
        gpu=device.kind if device else None,
        fragments=() if embedded else spec_of(config).fragments,
        update={**learner.parts, "peak": learner.peak},
        rollout={"weights": sampler.weights, "contexts": sampler.context * sampler.contexts, "peak": sampler.wanted},
        device_bytes=device.memory_bytes if device else None,
        on_paper=site.on_paper,
    )


def context_room(config: Config, shape: ModelShape, placed: Placed) -> int:
    """Tokens of the longest context that memory allows.

    On GPUs a copy of vLLM must hold one, earl's own sampler all of its share. On CPUs the keys and values of a step's
    episodes may take half of the machine's memory, or a single context all of `sampler.kv_cache_gib`.
    """
    vllm, tp = config.sampler.engine == "vllm", config.sampler.tp
    if placed.device_bytes is None and not vllm and config.sampler.cache_bytes is not None:
        return config.sampler.cache_bytes // kv_bytes(shape, tp)
    if placed.device_bytes is None:
        return memory_bytes() // 2 // (config.rollout.episodes * kv_bytes(shape))
    held = 1 if vllm else -(-config.rollout.episodes // config.placement.samplers)
    of_kind = replace(shape, float_bytes=_sampled_bytes(config))
    room = sampler_room(config, placed.device_bytes) - placed.rollout["weights"]
    return max(0, room) // (held * kv_bytes(of_kind, tp))


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


def _check_gpu(
    config: Config, shape: ModelShape, site: Site, device: Device, learner: LearnerBytes, sampler: SamplerBytes
) -> None:
    """One GPU holds its part of the learner, and, taking turns or apart, its part of a sampler."""
    place = config.placement
    if not fits(learner.peak, device.memory_bytes):
        raise EarlError(
            f"the learner needs {size(learner.peak)} on each GPU under dp {place.dp} x tp {place.tp} "
            f"{f'x cp {place.cp} ' if place.cp > 1 else ''}"
            f"({_parts(learner)}), one {device.kind} has {size(device.memory_bytes)}; "
            f"{' or '.join(_cures(config, shape, site, device.memory_bytes))}"
        )
    room = sampler_room(config, device.memory_bytes)  # `sampler.memory_share` leaves a margin
    needs = sampler.least if site.engine == "vllm" else sampler.wanted
    if needs > room:
        raise EarlError(
            f"the sampler needs {size(needs)} on each GPU under sampler.tp {config.sampler.tp} (weights "
            f"{size(sampler.weights)}, one context {size(sampler.context)}), and may take {size(room)} of one "
            f"{device.kind}; try a larger sampler.tp, a larger sampler.memory_share or a lower context.limit"
        )


def _cures(config: Config, shape: ModelShape, site: Site, room: int) -> list[str]:
    """Each change that would make the learner fit by itself; general advice when none does."""

    def suffices(dp: int, tp: int, **learner: object) -> bool:
        return fits(of_learner(config.changed(learner=learner), shape, site, dp, tp).peak, room)

    place, host = config.placement, site.cluster.gpus_per_host
    tokens = config.learner.micro_batch_tokens
    halved = [("micro_batch_tokens", tokens >> by) for by in (1, 2)]
    cures = [
        f"set learner.{key} to {str(value).lower()}"
        for key, value in [("recompute", True), ("offload", True), *halved]
        if suffices(place.dp, place.tp, **{key: value})
    ]
    cures += [
        f"set placement.tp to {tp}"
        for tp in splits(shape, host)
        if suffices(place.ranks // (tp * place.cp), tp) and tp > place.tp
    ][:1]
    more = next((place.dp << by for by in range(1, 13) if suffices(place.dp << by, place.tp)), None)
    cures += [f"take {more * place.tp * place.cp} GPUs for it, placement.dp = {more}"] if more else []
    return cures or ["choose a smaller model, or more GPUs with learner.recompute and learner.offload"]


def _check_hosts(config: Config, site: Site, learner: LearnerBytes, sampler: SamplerBytes) -> None:
    if site.cluster.memory_bytes is None:
        return
    wanted, given = sampler.context * sampler.contexts, config.sampler.cache_bytes
    cache = (given or GIB) if site.engine == "vllm" else min(wanted, given or wanted)
    ranks, sampling = config.placement.ranks, config.placement.samplers * config.sampler.tp
    need = ranks * (learner.peak + PROCESS_BYTES) + sampling * (sampler.weights + cache + PROCESS_BYTES)
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
