"""The arrangement of a run: what the recipe sets, and a simple choice of what it leaves open on GPUs. Pure.

The smallest split of one copy that fits, for learner and sampler each; then as many copies as there are GPUs.
"""

from earl.config import Config
from earl.parallel.arrangement import Arrangement, shares, smallest, splits
from earl.parallel.fits import fits
from earl.parallel.footprint import LearnerBytes, SamplerBytes, Training, learner_bytes, sampler_bytes
from earl.parallel.memory import ModelShape
from earl.preflight.site import Site

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
SAMPLER_MARGIN = 0.0
"""`sampler.memory_share` leaves one."""


def dtype_of(config: Config, site: Site) -> str:
    """The type that the learner computes in."""
    return "bfloat16" if site.gpus and "dtype" not in config.learner.model_fields_set else config.learner.dtype


def arrange(config: Config, shape: ModelShape, site: Site) -> Arrangement:
    """Copies of learner and sampler, and the devices of each."""
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
    """What one rank of the learner takes."""
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
    """What one device of a sampler takes; its copy holds its share of a step's episodes."""
    size = FLOAT_BYTES[dtype_of(config, site)] if site.engine == "vllm" else FLOAT_BYTES["float32"]
    longest = config.context.ceiling or config.context.first_limit
    return sampler_bytes(shape, tp, size, longest, -(-config.rollout.episodes // samplers))


def sampler_room(config: Config, site: Site, device_bytes: int) -> int:
    """How much of a GPU a sampler may take."""
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
