"""The embedded placement: rollout, experience preparation and update in the same few processes, without Ray."""

from dataclasses import dataclass

import torch

from earl.algorithms.registry import algorithm
from earl.config import Config
from earl.engine.learner import Learner
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, make, shape_of
from earl.engine.ranks import Replicas
from earl.engine.samplers import make_sampler
from earl.placement.fragment import RolloutFragment, world_of
from earl.placement.peers import Peers
from earl.placement.pipeline import StepPipeline
from earl.placement.rollout_backend import PeerPlayers
from earl.rollout.drivers import Completes, Greedy
from earl.rollout.tasks import EpisodeFactory

# The policy of `earl eval` and `earl play` is greedy, and runs in this process only.

SMALL_PARAMETERS = 10_000_000
"""Up to this size the matrices are so small that threads cost more than they gain."""


@dataclass(frozen=True, slots=True)
class EvalPolicy:
    world: EpisodeFactory
    sampler: Completes


def judge(config: Config, policy: Policy, limit: int | None = None) -> EvalPolicy:
    """A greedy sampler of a policy. limit: the context limit that its training reached."""
    if sum(parameter.numel() for parameter in policy.model.parameters()) <= SMALL_PARAMETERS:
        torch.set_num_threads(1)
    return EvalPolicy(world_of(config, policy.tokenizer, limit), Greedy(LocalSampler(policy)))


def embedded(config: Config, peers: Peers, policy: Policy | None = None) -> StepPipeline:
    torch.set_num_threads(1)  # processes share the cores; more threads would slow all down
    policy = policy or make(config.model, config.run.seed)
    values = algorithm(config.algorithm.name).needs_values
    fragment = RolloutFragment(config, policy.tokenizer, make_sampler(config, policy))
    learner = Learner(policy, config.algorithm, config.learner, config.rollout.temperature, Replicas(peers), values)
    world = world_of(config, policy.tokenizer)
    return StepPipeline(config, world, shape_of(policy.model), learner, PeerPlayers(fragment, peers))
