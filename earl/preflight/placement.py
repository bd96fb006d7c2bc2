"""Arranges learner and samplers on devices, and checks that they fit: device counts, splits of heads, memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from earl.config import Config
from earl.engine.samplers import check_alone
from earl.errors import EarlError
from earl.parallel.arrangement import Arrangement, check_split, fits, shares, smallest, splits
from earl.parallel.footprint import LearnerBytes, SamplerBytes, Training, learner_bytes, sampler_bytes
from earl.parallel.memory import ModelShape, kv_bytes
from earl.placement.ray.placement_spec import Fragment, policy_of, slots_of
from earl.preflight.cluster import Site
from earl.preflight.hardware import memory_bytes, size

# The arrangement: the recipe's settings, and on GPUs a simple choice of what is left open: the smallest split of one
# copy that fits, for learner and sampler each, then as many copies as there are GPUs.

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
SAMPLER_MARGIN = 0.0  # `sampler.memory_share` already leaves one


def dtype_of(config: Config, site: Site) -> str:
    return "bfloat16" if site.gpus and "dtype" not in config.learner.model_fields_set else config.learner.dtype


def arrange(config: Config, shape: ModelShape, site: Site) -> Arrangement:
    place, shared = config.placement, site.kind == "colocated"
    tp, sampler_tp, dp, samplers, cp = place.tp, config.sampler.tp, place.dp, place.samplers, place.cp
    if not site.gpus:
        return Arrangement(dp, tp, samplers, sampler_tp, shared, cp)
    given, host = place.model_fields_set, site.cluster.gpus_per_host
    if "tp" in config.sampler.model_fields_set or site.engine == "local":
        sampler_splits = [sampler_tp]
    else:
        sampler_splits = [size for size in splits(shape, host, replicated=True) if host % size == 0]
    sampler_tp = smallest(sampler_splits, lambda size: _sampler_fits(config, shape, site, size))
    learning, sampling = shares(site.cluster, shared)
    if not shared and "samplers" in given:
        learning = max(1, site.cluster.gpus - samplers * sampler_tp)
    elif not shared and "dp" in given:
        sampling = site.cluster.gpus - dp * tp * cp
    if "tp" not in given:
        learner_splits = [size for size in splits(shape, host) if host % size == 0]
        tp = smallest(
            learner_splits, lambda size: _learner_fits(config, shape, site, learning // (size * cp) or 1, size)
        )
    if "dp" not in given:
        dp = max(1, learning // (tp * cp))
    if "samplers" not in given:
        samplers = max(1, min(sampling // sampler_tp, config.rollout.prompts))
    return Arrangement(dp, tp, samplers, sampler_tp, shared, cp)


def of_learner(config: Config, shape: ModelShape, site: Site, dp: int, tp: int) -> LearnerBytes:
    learner = config.learner
    training = Training(
        dp=dp,
        tp=tp,
        cp=config.placement.cp,
        tokens=learner.micro_batch_tokens,
        float_bytes=FLOAT_BYTES[dtype_of(config, site)],
        recompute=learner.recompute,
        offload=learner.offload,
        lora_rank=learner.lora_rank,
        reference=config.algorithm.kl > 0,
        whole=site.kind == "embedded",
        on_host=not site.gpus,
    )
    return learner_bytes(shape, training)


def of_sampler(config: Config, shape: ModelShape, site: Site, tp: int, samplers: int) -> SamplerBytes:
    """Memory of one device of a sampler, which holds its copy's share of a step's episodes."""
    size = FLOAT_BYTES[dtype_of(config, site)] if site.engine == "vllm" else FLOAT_BYTES["float32"]
    longest = config.context.ceiling or config.context.first_limit
    return sampler_bytes(shape, tp, size, longest, -(-config.rollout.episodes // samplers))


def sampler_room(config: Config, site: Site, device_bytes: int) -> int:
    """Memory of a GPU that a sampler may use."""
    return int(device_bytes * config.sampler.memory_share) if site.engine == "vllm" else device_bytes


def _learner_fits(config: Config, shape: ModelShape, site: Site, dp: int, tp: int) -> bool:
    device = site.cluster.device
    return device is None or fits(of_learner(config, shape, site, dp, tp).peak, device.memory_bytes).ok


def _sampler_fits(config: Config, shape: ModelShape, site: Site, tp: int) -> bool:
    device = site.cluster.device
    if device is None:
        return True
    room = sampler_room(config, site, device.memory_bytes)
    return fits(of_sampler(config, shape, site, tp, 1).least, room, SAMPLER_MARGIN).ok


PROCESS_BYTES = 200 << 20  # minimum of a Python process that has loaded torch and Ray


@dataclass(frozen=True, slots=True)
class Placed:
    kind: str
    where: str
    gpus: int  # available to the run
    gpu: str | None  # their kind; None: no GPUs, or an unlisted kind
    dp: int
    tp: int
    cp: int
    samplers: int
    sampler_tp: int
    engine: str
    dtype: str
    fragments: tuple[Fragment, ...]  # empty in the embedded placement, where every process holds both
    update: Mapping[str, int]  # bytes of one learner rank during the update, by purpose
    rollout: Mapping[str, int]  # bytes of one sampler device during rollout
    device_bytes: int | None  # memory of a GPU; None: unknown, or no GPUs
    on_paper: bool

    @property
    def chosen(self) -> dict[str, dict[str, object]]:
        """Settings that a recipe may leave open, as decided, by section."""
        place: dict[str, object] = {"kind": self.kind}
        if self.kind != "embedded":
            place |= {"dp": self.dp, "tp": self.tp, "cp": self.cp, "samplers": self.samplers}
        sampler = {"engine": self.engine, "tp": self.sampler_tp}
        return {"placement": place, "sampler": sampler, "learner": {"dtype": self.dtype}}


def check_placement(config: Config, shape: ModelShape, site: Site) -> Placed:
    """Arrange learner and samplers. Raises EarlError when they cannot fit."""
    found = arrange(config, shape, site)
    check_split(shape, "placement.tp", found.tp, replicated=False)
    check_split(shape, "sampler.tp", found.sampler_tp, replicated=site.engine == "vllm")
    learner = of_learner(config, shape, site, found.dp, found.tp)
    players = config.run.processes if site.kind == "embedded" else found.samplers
    sampler = of_sampler(config, shape, site, found.sampler_tp, players)
    placed = _placed(config, site, found, learner, sampler)
    if site.kind != "embedded":
        _check_shares(config, found)
        if site.engine == "local":
            check_alone(config, found.sampler_tp)
        _check_devices(config, site, found, placed)
        if site.gpus:
            _check_gpu(config, shape, site, found, learner, sampler)
        else:
            _check_hosts(config, site, found, learner, sampler)
    return placed


def _check_shares(config: Config, found: Arrangement) -> None:
    """Every sampler and environment has a share of a step's groups, and the settings can be combined."""
    place = config.placement
    for key, count in (("samplers", found.samplers), ("environments", place.environments)):
        if count > config.rollout.prompts:
            raise EarlError(
                f"placement.{key} = {count} must not be larger than rollout.episodes / rollout.group_size "
                f"= {config.rollout.prompts}; lower it or raise the other"
            )
    if place.environments and place.max_staleness:
        raise EarlError(
            f"placement.environments = {place.environments} and placement.max_staleness = {place.max_staleness}: "
            "episodes that run ahead of the learner live with their samplers; leave one of the two out"
        )


def context_room(config: Config, shape: ModelShape, placed: Placed) -> int:
    """Tokens of the longest context that memory allows.

    On GPUs a copy of vLLM must hold one, earl's own sampler all of its share. On CPUs the keys and values of a step's
    episodes may take half of the machine's memory, or a single context all of `sampler.kv_cache_gib`.
    """
    if placed.device_bytes is None and placed.engine == "local" and config.sampler.cache_bytes is not None:
        return config.sampler.cache_bytes // kv_bytes(shape, placed.sampler_tp)
    if placed.device_bytes is None:
        return memory_bytes() // 2 // (config.rollout.episodes * kv_bytes(shape))
    vllm = placed.engine == "vllm"
    room = int(placed.device_bytes * config.sampler.memory_share) if vllm else placed.device_bytes
    held = 1 if vllm else -(-config.rollout.episodes // placed.samplers)
    of_kind = replace(shape, float_bytes=FLOAT_BYTES[placed.dtype] if vllm else FLOAT_BYTES["float32"])
    return max(0, room - placed.rollout["weights"]) // (held * kv_bytes(of_kind, placed.sampler_tp))


def settled(config: Config, placed: Placed) -> Config:
    """The recipe with all decisions written out, so that a run continues unchanged elsewhere."""
    tables = {section: getattr(config, section).model_copy(update=keys) for section, keys in placed.chosen.items()}
    return config.model_copy(update=tables)


def _placed(config: Config, site: Site, found: Arrangement, learner: LearnerBytes, sampler: SamplerBytes) -> Placed:
    cluster = site.cluster
    placed = Placed(
        kind=site.kind,
        where=cluster.where,
        gpus=cluster.gpus if site.gpus else 0,
        gpu=cluster.device.kind if site.gpus and cluster.device else None,
        dp=found.dp,
        tp=found.tp,
        cp=found.cp,
        samplers=found.samplers,
        sampler_tp=found.sampler_tp,
        engine=site.engine,
        dtype=dtype_of(config, site),
        fragments=(),
        update={**learner.parts, "peak": learner.peak},
        rollout={"weights": sampler.weights, "contexts": sampler.context * sampler.contexts, "peak": sampler.wanted},
        device_bytes=cluster.device.memory_bytes if site.gpus and cluster.device else None,
        on_paper=site.on_paper,
    )
    if site.kind == "embedded":
        return placed
    policy = policy_of(settled(config, placed))
    return replace(placed, fragments=policy.fragments)


def _check_devices(config: Config, site: Site, found: Arrangement, placed: Placed) -> None:
    """Check the number of GPUs, and on a cluster of processors: Ray would wait for missing ones without end."""
    apart = config.placement.environments
    cpus = site.cluster.cpus if config.placement.address is not None else None
    if site.gpus:
        have, device, host = site.cluster.gpus, "GPUs", site.cluster.gpus_per_host
    elif cpus is not None:
        have, device, host = cpus, "CPUs", cpus
    else:
        return  # on one machine processes may share the cores
    bundles = slots_of(policy_of(settled(config, placed))).bundles
    need, widest = sum(bundles), max(bundles)
    if need > have:
        raise EarlError(
            f"{_asked(found)} = {need} {device}, {site.cluster.where} has {site.cluster.holds}; lower placement.dp, "
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


def _asked(found: Arrangement) -> str:
    learner, sampler = f"placement.dp {found.dp} x placement.tp {found.tp}", f"placement.samplers {found.samplers}"
    learner += f" x placement.cp {found.cp}" if found.cp > 1 else ""
    return f"{learner} {'and in turns' if found.shared else 'and'} {sampler} x sampler.tp {found.sampler_tp}"


def _check_gpu(
    config: Config, shape: ModelShape, site: Site, found: Arrangement, learner: LearnerBytes, sampler: SamplerBytes
) -> None:
    """One GPU holds its part of the learner, and, taking turns or apart, its part of a sampler."""
    device = site.cluster.device
    if device is None:
        return
    if not fits(learner.peak, device.memory_bytes).ok:
        raise EarlError(
            f"the learner needs {size(learner.peak)} on each GPU under dp {found.dp} x tp {found.tp} "
            f"{f'x cp {found.cp} ' if found.cp > 1 else ''}"
            f"({_parts(learner)}), one {device.kind} has {size(device.memory_bytes)}; "
            f"{' or '.join(_cures(config, shape, site, found, device.memory_bytes))}"
        )
    room = sampler_room(config, site, device.memory_bytes)
    needs = sampler.least if site.engine == "vllm" else sampler.wanted
    if not fits(needs, room, SAMPLER_MARGIN).ok:
        raise EarlError(
            f"the sampler needs {size(needs)} on each GPU under sampler.tp {found.sampler_tp} (weights "
            f"{size(sampler.weights)}, one context {size(sampler.context)}), and may take {size(room)} of one "
            f"{device.kind}; try a larger sampler.tp, a larger sampler.memory_share or a lower context.limit"
        )


def _cures(config: Config, shape: ModelShape, site: Site, found: Arrangement, room: int) -> list[str]:
    """Each change that would make the learner fit by itself; general advice when none does."""

    def suffices(dp: int, tp: int, **learner: object) -> bool:
        changed = config.model_copy(update={"learner": config.learner.model_copy(update=learner)})
        return fits(of_learner(changed, shape, site, dp, tp).peak, room).ok

    host = site.cluster.gpus_per_host
    keys: list[tuple[str, object]] = [("recompute", True), ("offload", True)]
    keys += [("micro_batch_tokens", config.learner.micro_batch_tokens >> by) for by in (1, 2)]
    cures = [
        f"set learner.{key} to {str(value).lower()}"
        for key, value in keys
        if suffices(found.dp, found.tp, **{key: value})
    ]
    cures += [
        f"set placement.tp to {tp}"
        for tp in splits(shape, host)
        if suffices(found.ranks // (tp * found.cp), tp) and tp > found.tp
    ][:1]
    more = next((found.dp << by for by in range(1, 13) if suffices(found.dp << by, found.tp)), None)
    cures += [f"take {more * found.tp * found.cp} GPUs for it, placement.dp = {more}"] if more else []
    return cures or ["choose a smaller model, or more GPUs with learner.recompute and learner.offload"]


def _check_hosts(config: Config, site: Site, found: Arrangement, learner: LearnerBytes, sampler: SamplerBytes) -> None:
    if site.cluster.memory_bytes is None:
        return
    wanted = sampler.context * sampler.contexts
    cache = (
        config.sampler.vllm_cache_bytes if site.engine == "vllm" else min(wanted, config.sampler.cache_bytes or wanted)
    )
    held = sampler.weights + cache
    need = found.ranks * (learner.peak + PROCESS_BYTES) + found.sampling * (held + PROCESS_BYTES)
    need += config.placement.environments * PROCESS_BYTES
    have = site.cluster.memory_bytes * site.cluster.hosts
    if need > have:
        raise EarlError(
            f"{_asked(found)} = {found.ranks} + {found.sampling} processes need {size(need)} of memory, "
            f"{site.cluster.where} has {size(have)}; choose a smaller model or fewer of them"
        )


def _parts(learner: LearnerBytes) -> str:
    parts = sorted(learner.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {size(count)}" for name, count in parts[:4] if count)
