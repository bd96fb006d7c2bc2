"""A policy that only plays: what `earl eval` and `earl play` load. Greedy, in this process alone."""

from dataclasses import dataclass

import torch

from earl.config import Config
from earl.engine.local import LocalSampler
from earl.engine.model import Policy
from earl.placement.fragment import world_of
from earl.rollout.drivers import Completes, Greedy
from earl.rollout.tasks import EpisodeFactory

SMALL_PARAMETERS = 10_000_000
"""Up to here the matrices are so small that threads cost more than they bring."""


@dataclass(frozen=True, slots=True)
class EvalPolicy:
    """Who plays, and the world that it plays in by the recipe's rules."""

    world: EpisodeFactory
    sampler: Completes


def judge(config: Config, policy: Policy, limit: int | None = None) -> EvalPolicy:
    """Make a policy play its most likely moves; `limit` is the context limit that its training had come to."""
    if sum(parameter.numel() for parameter in policy.model.parameters()) <= SMALL_PARAMETERS:
        torch.set_num_threads(1)
    return EvalPolicy(world_of(config, policy.tokenizer, limit), Greedy(LocalSampler(policy)))
