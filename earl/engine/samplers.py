"""The sampler that a recipe asks for."""

import torch

from earl.config import Config
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, shape_of
from earl.engine.router import Batcher
from earl.engine.sampler import Sampler
from earl.engine.sharding.tp_group import Band
from earl.engine.split import SplitSampler
from earl.errors import EarlError
from earl.parallel.memory import ModelShape

# Which sampler `[sampler] engine = "auto"` takes: the fastest one, by measurement.
#
# Episodes per second of earl's own sampler over those of the fastest other (`transformers.generate`, vLLM eager or
# compiled), by `earl bench sampler` on two CPU cores; docs/benchmarks.md has all of it:
#
# episodes at once      1      16     64     128
# 1M parameters         1.3    1.8    2.1    2.3
# 5M parameters         1.3    1.6    1.5    1.6
#
# So on CPUs it is earl's own: contexts that are alike are computed once, and nothing goes through a scheduler. On GPUs,
# where earl's own does not run, it is vLLM.


def choose(parameters: int, episodes: int) -> str:
    """`local` or `vllm`, for a model of so many parameters and so many episodes at once."""
    del parameters, episodes  # in no case measured do they change the choice
    return "vllm" if torch.cuda.is_available() else "local"


def make_sampler(config: Config, policy: Policy, band: Band | None = None) -> Sampler:
    """A sampler with the policy's weights; without any where the policy's model is on the meta device.

    Where episodes go at their own pace, since environments are slow or elsewhere or rollout goes on while the learner
    learns, it takes single prompts too.

    Args:
        band: the processes that this copy is split over; None: this process has all of it.

    Raises:
        EarlError: when [sampler] asks for what there is not, or what cannot run here.
    """
    shape = shape_of(policy.model)
    if engine_of(config, shape) == "local":
        local = _local(config, policy, band)
        place = config.placement
        return Batcher(local) if config.env.delay_seconds or place.max_staleness or place.environments else local
    from earl.engine.vllm.sampler import VllmSampler

    return VllmSampler(policy, config.sampler, config.rollout.temperature, longest_context(config, shape))


def _local(config: Config, policy: Policy, band: Band | None) -> LocalSampler:
    room = config.sampler.cache_bytes
    if band is not None:
        return SplitSampler(policy, band, config.rollout.temperature, room)
    return LocalSampler(policy, config.rollout.temperature, room)


def split_of(sampler: Sampler) -> SplitSampler | None:
    """This process's part of a sampler that is split over several; None where it is whole."""
    within = sampler.within if isinstance(sampler, Batcher) else sampler
    return within if isinstance(within, SplitSampler) else None


def engine_of(config: Config, shape: ModelShape) -> str:
    """`local` or `vllm`."""
    asked = config.sampler.engine
    return choose(shape.parameters, config.rollout.episodes) if asked == "auto" else asked


def processes_of(config: Config, shape: ModelShape) -> int:
    """Processes of one copy of the sampler, each on a device: vLLM has its own ones inside of one.

    Raises:
        EarlError: when earl's own cannot be split under this placement.
    """
    if engine_of(config, shape) == "vllm":
        return 1
    check_alone(config, config.sampler.tp)
    return config.sampler.tp


def check_alone(config: Config, tp: int) -> None:
    """Raises EarlError where earl's own sampler would be split while others ask it at any time."""
    place = config.placement
    for key, count in (("environments", place.environments), ("max_staleness", place.max_staleness)):
        if tp > 1 and count:
            raise EarlError(
                f"sampler.tp = {tp} and placement.{key} = {count}: earl's own sampler is split over processes where "
                "its episodes live with it and take turns with the learner; leave one of the two out, or set "
                "sampler.engine to vllm"
            )


def longest_context(config: Config, shape: ModelShape) -> int:
    """Tokens of the longest context that a run may come to."""
    context = config.context
    limit = context.limit if isinstance(context.limit, int) else context.ceiling
    return min(limit or shape.max_positions, shape.max_positions)
