"""The terms that losses are made of; each a function of [M] log-probs."""

import torch
from torch import Tensor

from earl.algorithms.base import Stats, TokenInputs
from earl.config import AlgorithmConfig


def clipped_surrogate(inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
    """The clipped surrogate objective, negated and summed over tokens (PPO, arXiv 1707.06347, equation 7).

    The upper bound may differ from the lower one (clip-higher of DAPO, arXiv 2503.14476).
    """
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    high = config.clip if config.clip_high is None else config.clip_high
    clipped = ratio.clamp(1 - config.clip, 1 + high)
    objective = torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    return -objective.sum(), {"clip_fraction": (ratio != clipped).float().sum(), **ratio_stats(ratio)}


def importance_weighted(inputs: TokenInputs) -> tuple[Tensor, Stats]:
    """REINFORCE with importance weights, negated and summed: its gradient on policy is that of -A·log π."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return -(ratio * inputs.advantages).sum(), ratio_stats(ratio)


def kl_to_reference(inputs: TokenInputs) -> Tensor:
    """KL(π ‖ π_ref) by the unbiased non-negative estimator r - 1 - log r, r = π_ref/π, summed (GRPO, equation 4)."""
    log_ratio = inputs.reference - inputs.logprobs
    return (log_ratio.exp() - 1 - log_ratio).sum()


def ratio_stats(ratio: Tensor) -> Stats:
    """The mean importance ratio and the approximate KL divergence to the policy of the old log-probs: the sampler's."""
    kept = ratio.detach()
    return {"ratio": kept.sum(), "kl_to_sampler": (kept - 1 - kept.log()).sum()}
