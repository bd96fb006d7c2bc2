"""The sampler that a recipe asks for."""

from earl.config import Config
from earl.engine.batcher import Batcher
from earl.engine.choice import choose
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, shape_of
from earl.engine.sampler import Sampler
from earl.errors import EarlError
from earl.parallel.memory import ModelShape


def make_sampler(config: Config, policy: Policy) -> Sampler:
    """A sampler with the policy's weights; without any where the policy's model is on the meta device.

    Where episodes go at their own pace, since environments are slow or elsewhere or rollout goes on while the learner
    learns, it takes single prompts too.

    Raises:
        EarlError: when [sampler] asks for what there is not, or what cannot run here.
    """
    shape = shape_of(policy.model)
    if engine_of(config, shape) == "local":
        local = LocalSampler(policy, config.rollout.temperature)
        place = config.placement
        return Batcher(local) if config.env.delay_seconds or place.max_staleness or place.environments else local
    from earl.engine.vllm.sampler import VllmSampler

    return VllmSampler(policy, config.sampler, config.rollout.temperature, longest_context(config, shape))


def engine_of(config: Config, shape: ModelShape) -> str:
    """`local` or `vllm`.

    Raises:
        EarlError: when the engine would ignore a setting.
    """
    asked = config.sampler.engine
    engine = choose(shape.parameters, config.rollout.episodes) if asked == "auto" else asked
    if engine == "local" and config.sampler.tp > 1:
        raise EarlError(
            f"sampler.tp is {config.sampler.tp}, and earl's own sampler is not split over devices; "
            "set sampler.engine to vllm, or sampler.tp to 1"
        )
    return engine


def longest_context(config: Config, shape: ModelShape) -> int:
    """Tokens of the longest context that a run may come to."""
    context = config.context
    limit = context.limit if isinstance(context.limit, int) else context.ceiling
    return min(limit or shape.max_positions, shape.max_positions)
