"""Makes the sampler that a recipe asks for."""

import torch

from earl.config import Config
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, shape_of
from earl.engine.router import Batcher
from earl.engine.sampler import Sampler
from earl.engine.split import Band, SplitSampler
from earl.errors import EarlError
from earl.parallel.memory import ModelShape

# `[sampler] engine = "auto"` takes the fastest engine by measurement (`earl bench sampler`, docs/benchmarks.md). On two
# CPU cores earl's own is 1.3 to 2.3 times as fast as the best other one, for 1M and 5M parameters and 1 to 128 episodes
# at once. On GPUs, where earl's own does not run, it is vLLM.


def choose() -> str:
    """`local` or `vllm`, whichever is the faster one on this machine."""
    return "vllm" if torch.cuda.is_available() else "local"


def engine_of(config: Config) -> str:
    return choose() if config.sampler.engine == "auto" else config.sampler.engine


def make_sampler(config: Config, policy: Policy, band: Band | None = None) -> Sampler:
    """A sampler with the policy's weights; without weights if the policy's model is on the meta device. It also
    completes single prompts if environments are slow or remote, or rollout overlaps with learning. band: the
    processes of a split copy. Raises EarlError when [sampler] asks for an engine that is missing, or that cannot run
    here."""
    shape, temperature, room = shape_of(policy.model), config.rollout.temperature, config.sampler.cache_bytes
    if engine_of(config) == "vllm":
        from earl.engine.vllm.sampler import VllmSampler

        return VllmSampler(policy, config.sampler, temperature, longest_context(config, shape))
    local = SplitSampler(policy, band, temperature, room) if band else LocalSampler(policy, temperature, room)
    place = config.placement
    return Batcher(local) if config.env.delay_seconds or place.max_staleness or place.environments else local


def split_of(sampler: Sampler) -> SplitSampler | None:
    within = sampler.within if isinstance(sampler, Batcher) else sampler
    return within if isinstance(within, SplitSampler) else None


def processes_of(config: Config) -> int:
    """Processes of one copy of the sampler, each on a device; 1 for vLLM, which has its own worker processes. Raises
    EarlError when earl's own sampler cannot be split under this placement."""
    if engine_of(config) == "vllm":
        return 1
    check_alone(config, config.sampler.tp)
    return config.sampler.tp


def check_alone(config: Config, tp: int) -> None:
    """Raises EarlError where earl's own sampler would be split while others call it at any time."""
    place = config.placement
    for key, count in (("environments", place.environments), ("max_staleness", place.max_staleness)):
        if tp > 1 and count:
            raise EarlError(
                f"sampler.tp = {tp} and placement.{key} = {count}: earl's own sampler is split over processes where "
                "its episodes live with it and take turns with the learner; leave one of the two out, or set "
                "sampler.engine to vllm"
            )


def longest_context(config: Config, shape: ModelShape) -> int:
    context = config.context
    limit = context.limit if isinstance(context.limit, int) else context.ceiling
    return min(limit or shape.max_positions, shape.max_positions)
