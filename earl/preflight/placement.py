"""Where a run is carried out and whether it fits there: placement, devices, the engine, layouts, memory and disk.

Settings that a recipe leaves open are decided here once and written into it, the layouts as `earl plan` chooses them.
"""

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.dispatch.predicted_cost import load_at
from earl.engine.model import reference_shape
from earl.engine.samplers import check_alone
from earl.engine.source import folder_of, is_here, known_shape
from earl.errors import EarlError, setting
from earl.formats import size
from earl.parallel.cost_model import OWN, CostModel, policies_differ
from earl.parallel.footprint import LearnerBytes, Training, learner_bytes
from earl.parallel.hardware import GIB, ClusterSpec, of_gpus
from earl.parallel.layout import Layout, check_shared, check_split, learner_layout, splits
from earl.parallel.memory import Load, ModelShape, kv_bytes
from earl.parallel.throughput.step import VLLM
from earl.placement.costs import current_choice, with_choice
from earl.placement.ray.inventory import here, installed, inventory, on_this_machine
from earl.placement.ray.placement_spec import Fragment, slots_of, spec_of

CURES = {
    "ray": "pip install 'earl[ray]', or leave the run embedded",
    "vllm": "pip install 'earl[vllm]' on a machine with GPUs, or set sampler.engine to local",
    "peft": "pip install 'earl[lora]', or set learner.lora_rank to 0",
}
"""Cure by library, when a setting needs one that is not installed."""


@dataclass(frozen=True, slots=True)
class Site:
    kind: str  # embedded, colocated or disaggregated
    engine: str  # local or vllm
    cluster: ClusterSpec
    on_paper: bool  # whether the cluster is only described, to plan a run elsewhere

    @property
    def gpus(self) -> bool:
        return self.kind != "embedded" and self.cluster.gpus > 0


def survey(config: Config, dry: bool) -> Site:
    """Determine the site of a recipe. Raises EarlError when something that it needs is missing or does not answer.
    In a `dry` run, GPUs that --gpus names need not exist, and no cluster is contacted."""
    place, engine = config.placement, config.sampler.engine
    with setting("placement.gpus"):
        asked = of_gpus(place.gpus) if place.gpus else None
    kind: str = place.kind
    if kind == "auto":
        named = place.address is not None or asked is not None
        kind = "colocated" if named or (here(0).gpus and installed("ray")) else "embedded"
    on_paper = dry and (asked is not None or place.address is not None)
    needs = {
        "ray": (kind != "embedded", f"placement.kind = {kind!r}"),
        "vllm": (engine == "vllm", "sampler.engine = 'vllm'"),
        "peft": (config.learner.lora_rank > 0, f"learner.lora_rank = {config.learner.lora_rank}"),
    }
    for library, (needed, what) in needs.items():
        if needed and not on_paper and not installed(library):
            raise EarlError(f"{what} needs {library}, which is not installed; {CURES[library]}")
    if on_paper:
        cluster = asked or ClusterSpec("", 1, None, None)
        if place.address:
            cluster = replace(cluster, where=f"the Ray cluster at {place.address}, which was not asked what it has")
    elif kind == "embedded" or not place.address:
        cluster = here(memory_bytes())
    else:
        cluster = inventory(place.address)
    if asked and kind != "embedded" and not on_paper:
        cluster = _allowed(cluster, asked)
    if engine == "auto":
        engine = "vllm" if kind != "embedded" and cluster.gpus and (on_paper or installed("vllm")) else "local"
    return Site(kind, engine, cluster, on_paper)


def check_address(config: Config, given: bool) -> None:
    """Raises EarlError for a remote address that was not `given` on this command line.
    So a recipe from someone else, or a run's own, cannot make earl contact a host."""
    address = config.placement.address
    if address is not None and not given and not on_this_machine(address):
        raise EarlError(
            f"placement.address = {address!r} is in the recipe alone: earl would contact that host; "
            f"permit that with --address {shlex.quote(address)}, or name another"
        )


def _allowed(found: ClusterSpec, asked: ClusterSpec) -> ClusterSpec:
    """The part of a cluster that `--gpus` allows. Raises EarlError when there is less, or another kind."""
    if asked.gpus > found.gpus or asked.gpus_per_host > found.gpus_per_host:
        raise EarlError(
            f"placement.gpus asks for {asked.hosts} x {asked.gpus_per_host} = {asked.gpus} GPUs, {found.where} has "
            f"{found.holds}; name what there is, or another cluster with --address; --dry-run alone plans for GPUs "
            "that are elsewhere"
        )
    if found.device and asked.device and found.device.kind != asked.device.kind:
        raise EarlError(
            f"placement.gpus asks for {asked.device.kind}, the GPUs of {found.where} are {found.device.kind}; "
            f"set it to {asked.hosts}x{asked.gpus_per_host}x{found.device.kind}"
        )
    device = found.device or asked.device
    return replace(found, hosts=asked.hosts, gpus=asked.gpus, gpus_per_host=asked.gpus_per_host, device=device)


def costs_at(config: Config, shape: ModelShape, site: Site) -> CostModel:
    cluster = site.cluster if site.gpus else replace(site.cluster, gpus=0, device=None)
    served = VLLM if site.engine == "vllm" else OWN
    return CostModel(config, shape, cluster, served, reference=reference_shape(config))


def longest_load(config: Config, shape: ModelShape) -> Load:
    """A step with the longest context that a recipe allows. A limit that grows may reach a micro-batch."""
    grown = min(shape.max_positions, config.learner.micro_batch_tokens) if config.context.automatic else 0
    return load_at(config.rollout.episodes, config.context.ceiling or max(grown, config.context.first_limit))


def fill_open_settings(config: Config, shape: ModelShape, site: Site) -> Config:
    """The recipe with everything that it leaves open decided, so that a run continues unchanged elsewhere. On GPUs the
    layouts are those of `earl plan` for the recipe's longest context."""
    dtype = "bfloat16" if site.gpus and "dtype" not in config.learner.model_fields_set else config.learner.dtype
    config = config.changed(placement={"kind": site.kind}, sampler={"engine": site.engine}, learner={"dtype": dtype})
    weighs = policies_differ(config, site.engine == "vllm", dtype)
    corrected = {"correction": "token"} if weighs and "correction" not in config.algorithm.model_fields_set else {}
    if not site.gpus:
        return config.changed(algorithm=corrected)
    costs, load = costs_at(config, shape, site), longest_load(config, shape)
    learning, sampling = costs.shares(load)
    first = costs.best(costs.rollout_choices(sampling), load)
    last = costs.best_update(costs.learner_layouts(learning), load)
    return with_choice(with_choice(config, first), last).changed(algorithm=corrected)


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
    """Arrange a decided recipe on its devices. Raises EarlError when learner and samplers cannot be built, or do not
    fit."""
    place, embedded = config.placement, site.kind == "embedded"
    costs, load = costs_at(config, shape, site), longest_load(config, shape)
    check_shared(shape, learner_layout(place))
    check_split(shape, "sampler.tp", config.sampler.tp, replicated=site.engine == "vllm")
    learner = _learner_bytes(costs, load)
    if embedded:
        check_memory(config, shape)
    else:
        _check_actors(costs, site, load, learner)
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


def _check_actors(costs: CostModel, site: Site, load: Load, learner: LearnerBytes) -> None:
    """Check that the actors of a cluster can be placed, and fit."""
    config, place = costs.config, costs.config.placement
    if place.environments and place.max_staleness:
        raise EarlError(
            f"placement.environments = {place.environments} and placement.max_staleness = {place.max_staleness}: "
            "episodes that run ahead of the learner live with their samplers; leave one of the two out"
        )
    if site.engine != "vllm":
        check_alone(config, config.sampler.tp)
    _check_devices(config, site)
    if site.gpus:
        _check_gpu(costs, load, learner)
    else:
        _check_hosts(costs, site, load, learner)


def _learner_bytes(costs: CostModel, load: Load) -> LearnerBytes:
    config, own = costs.config, current_choice(costs.config, "update")
    if config.placement.kind != "embedded":
        return costs.learner_peak(own, costs.largest(load))
    alone = {"whole": True, "on_host": True, "reference_shape": costs.reference}
    return learner_bytes(costs.shape, Training.of(config, Layout(), **alone))


def _sampler_bytes(costs: CostModel, load: Load, copies: int) -> dict[str, int]:
    """Bytes of one device of a sampler: weights, and contexts of its copy's share of a step's episodes, those at once
    that an engine has room for."""
    engine = costs.engine(costs.config.sampler.tp)
    contexts = min(-(-load.sequences // copies), max(1, engine.kv_tokens(costs.values) // load.longest_tokens))
    return {"weights": engine.weight_bytes, "contexts": int(contexts * load.longest_tokens * engine.token_bytes)}


def _idle(costs: CostModel) -> tuple[str, ...]:
    """In words, which GPUs have nothing to do, and why."""
    gpus, config = costs.cluster.gpus, costs.config
    sampling, learning = current_choice(config, "rollout"), current_choice(config, "update")
    if config.placement.kind == "colocated":
        return tuple(filter(None, (costs.idle(learning, gpus), costs.idle(sampling, gpus))))
    left = gpus - sampling.layout.size - learning.layout.size
    return (f"{left} of {gpus} GPUs idle always: neither learner nor samplers divide them",) if left > 0 else ()


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
            f"{_device_product(config)} = {need} {device}, {site.cluster.where} has {site.cluster.holds}; lower "
            "placement.dp, placement.tp, placement.cp, placement.samplers or sampler.tp, or add hosts"
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


def _device_product(config: Config) -> str:
    place, turns = config.placement, " in turns" if config.placement.kind == "colocated" else ""
    cp = f" x placement.cp {place.cp}" if place.cp > 1 else ""
    return (
        f"placement.dp {place.dp} x placement.tp {place.tp}{cp} and{turns} placement.samplers {place.samplers} x "
        f"sampler.tp {config.sampler.tp}"
    )


def _check_gpu(costs: CostModel, load: Load, learner: LearnerBytes) -> None:
    """One GPU holds its part of the learner, and, taking turns or apart, its part of a sampler."""
    config, kind, most = costs.config, costs.device.kind, costs.largest(load)
    need = costs.need(current_choice(config, "update"), most)
    if need.why_not:
        largest = sorted(learner.parts.items(), key=lambda part: -part[1])[:4]
        parts = ", ".join(f"{name} {size(count)}" for name, count in largest if count)
        raise EarlError(
            f"the learner needs {size(need.needed_bytes)} on each GPU under {learner_layout(config.placement).words} "
            f"({parts}), one {kind} has {size(costs.memory_bytes)}; {' or '.join(_cures(costs, most))}"
        )
    need = costs.need(current_choice(config, "rollout"), load)
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
    own, place = current_choice(costs.config, "update"), costs.config.placement

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


PROCESS_BYTES = 200 << 20  # minimum of a Python process that has loaded torch and Ray


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
            f"{_device_product(config)} = {ranks} + {sampling} processes need {size(need)} of memory, "
            f"{site.cluster.where} has {size(have)}; choose a smaller model or fewer of them"
        )


FLOAT_BYTES = 4
COPIES = 7
"""Copies of every parameter per process: weights, gradients, two moments, two samplers, one message."""
EPISODE_BYTES = 4096  # approximate size of an episode's Python objects
KEPT = 4  # checkpoints on disk: the last two, the best, and the one being written
SMALL_TOKENIZER_BYTES = 1 << 16
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """The machine's memory, or the container's limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return min(physical, int(limit)) if limit.isdigit() else physical


def check_memory(config: Config, shape: ModelShape) -> None:
    """Raises EarlError when the weights and the episodes of one step alone exceed the machine's memory."""
    copies = COPIES + (config.algorithm.kl > 0)
    weights, room = shape.parameters * FLOAT_BYTES * copies * config.run.processes, memory_bytes()
    largest = max(config.rollout.episodes, config.warm_start.episodes if config.warm_start.steps else 0)
    episodes = largest * EPISODE_BYTES + config.rollout.episodes * kv_bytes(shape)
    if weights + episodes > room:
        raise EarlError(
            f"a model of {shape.parameters:,} parameters needs {size(weights)} to be trained by "
            f"{config.run.processes} processes, {largest:,} episodes per step need more than {size(episodes)}, and "
            f"this machine has {size(room)}; choose a smaller model, or lower run.processes, rollout.episodes or "
            "warm_start.episodes"
        )


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


def ceiling_of(config: Config, shape: ModelShape, site: Site) -> int:
    """Ceiling of `context.limit = "auto"`, in tokens, from positions, micro-batch and memory.
    Raises EarlError when the recipe's first limit or its ceiling is above that."""
    bounds = {
        shape.max_positions: "the model's length",
        config.learner.micro_batch_tokens: "learner.micro_batch_tokens",
        context_room(config, shape, site): "memory",
    }
    most = min(bounds)
    for name, value in (("ceiling", config.context.ceiling), ("initial", config.context.first_limit)):
        if value is not None and value > most:
            raise EarlError(
                f"context.{name} = {value} is above the {most} tokens that {bounds[most]} allows; "
                f"set context.{name} to at most {most}"
            )
    return config.context.ceiling or most


def checkpoint_bytes(config: Config, shape: ModelShape) -> int:
    """Approximate size of a checkpoint: weights, two moments, the reference, the tokenizer."""
    copies = 3 + (config.algorithm.kl > 0 and config.algorithm.reference is None)
    path, beside = config.model.path, SMALL_TOKENIZER_BYTES
    if path is not None and (known_shape(path) is None or is_here(path)):
        files = folder_of(path, weights=False).glob("*token*")
        beside = sum(file.stat().st_size for file in files if file.is_file())
    return shape.parameters * FLOAT_BYTES * copies + beside


def check_disk(root: Path, checkpoint: int) -> None:
    """Raises EarlError when the disk of `root` has no room for the checkpoints that a run keeps."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < KEPT * checkpoint:
        raise EarlError(
            f"no space left at {root}: {size(free)} are free, and a run keeps up to {KEPT} checkpoints of "
            f"{size(checkpoint)}; free space or choose another folder with --runs"
        )
