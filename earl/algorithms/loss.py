"""Terms of the losses, each a function of [M] log-probs, and the importance correction."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Stats, TokenInputs
from earl.batch import Batch
from earl.config import AlgorithmConfig

# Importance correction: rollouts may use older weights than the learner, and a sampler's arithmetic may differ from the
# learner's. In the decoupled objective of AReaL (arXiv 2505.24298) the clip holds to the proximal policy π_prox, the
# learner's before the update; its ratio to the sampler's policy is a weight beside the advantage, truncated from above
# (IMPALA, arXiv 1802.01561). Without it the clip cuts off tokens where the two differ before the first step.


def corrected(
    batch: Batch, proximal: NDArray[np.float32], mode: Literal["token", "sequence"], cap: float
) -> tuple[Batch, dict[str, float]]:
    """The batch with log-probs of the proximal policy and weighted advantages.

    Every loss is homogeneous in the advantage: a weight on the advantage is the same weight on the token's loss.

    Args:
        proximal: log-probs [T] at batch.mask of the learner's policy before the update.
        mode: by token, min(cap, π_prox / π_sampler) of each; by sequence, min(cap, the product of these ratios over
            all learned tokens of its row), where a row is one context.

    Returns:
        the batch, and over the learned tokens the mean weight, the share that was capped, and the KL divergence from
        the sampler's policy to the proximal one, as `kl_to_sampler` of the losses measures it.
    """
    if not batch.mask.any():
        return batch, {}
    log_ratio = np.where(batch.mask, proximal.astype(np.float64) - batch.logprobs, 0.0)
    log_weight = log_ratio
    if mode == "sequence":
        log_weight = np.repeat(np.add.reduceat(log_ratio, batch.offsets[:-1]), batch.lengths)
    weight = np.exp(np.minimum(log_weight, np.log(cap)))
    learned = log_ratio[batch.mask]
    stats = {
        "correction/weight": float(weight[batch.mask].mean()),
        "correction/capped": float((log_weight[batch.mask] > np.log(cap)).mean()),
        "kl_to_sampler": float((np.expm1(learned) - learned).mean()),
    }
    advantages = (batch.advantages * weight).astype(np.float32)
    logprobs = np.where(batch.mask, proximal, batch.logprobs).astype(np.float32)
    return replace(batch, advantages=advantages, logprobs=logprobs), stats


def clipped_surrogate(inputs: TokenInputs, config: AlgorithmConfig) -> tuple[Tensor, Stats]:
    """The clipped surrogate objective, negated and summed over tokens (PPO, arXiv 1707.06347, equation 7).
    The upper bound may differ from the lower one (clip-higher of DAPO, arXiv 2503.14476)."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    high = config.clip if config.clip_high is None else config.clip_high
    clipped = ratio.clamp(1 - config.clip, 1 + high)
    objective = torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    return -objective.sum(), {"clip_fraction": (ratio != clipped).float().sum(), **ratio_stats(ratio)}


def importance_weighted(inputs: TokenInputs, config: AlgorithmConfig | None = None) -> tuple[Tensor, Stats]:
    """REINFORCE with importance weights, negated and summed: its gradient on policy is that of -A·log π."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return -(ratio * inputs.advantages).sum(), ratio_stats(ratio)


def kl_to_reference(inputs: TokenInputs) -> Tensor:
    """KL(π ‖ π_ref) by the unbiased non-negative estimator r - 1 - log r, r = π_ref/π, summed (GRPO, equation 4)."""
    log_ratio = inputs.reference - inputs.logprobs
    return (log_ratio.exp() - 1 - log_ratio).sum()


def ratio_stats(ratio: Tensor) -> Stats:
    """Sums of the importance ratio and of the approximate KL divergence to the sampler's policy."""
    kept = ratio.detach()
    return {"ratio": kept.sum(), "kl_to_sampler": (kept - 1 - kept.log()).sum()}
