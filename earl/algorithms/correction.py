"""Importance correction: what was sampled by one policy is learned from by another, without favour to either.

Asynchronous rollout plays with weights that are some versions old, and a sampler's arithmetic may differ from the
learner's. The surrogate objectives compare the policy with the sampler's and clip where they are far apart; when they
are apart before the first step, the clip cuts off what has not been learned yet. In the decoupled objective of AReaL
(arXiv 2505.24298) the clip holds to the proximal policy π_prox, the learner's as the update begins, and how far that is
from the sampler's is a weight beside the advantage, truncated from above (IMPALA, arXiv 1802.01561).
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from earl.batch import Batch


def corrected(
    batch: Batch, proximal: NDArray[np.float32], mode: Literal["token", "sequence"], cap: float
) -> tuple[Batch, dict[str, float]]:
    """The batch as an update learns from it: log-probs of the proximal policy, weighted advantages.

    Every loss is homogeneous in the advantage: a weight on the advantage is the same weight on the token's loss.

    Args:
        proximal: log-probs [T] at batch.mask of the learner's policy before the update.
        mode: by token, min(cap, π_prox / π_sampler) of each; by sequence, min(cap, the product of these ratios over
            all learned tokens of its row), where a row is one context: the whole episode under full history, one
            turn where the context begins anew every turn.
        cap: the largest weight.

    Returns:
        the batch, and over the learned tokens the mean weight, the share that was capped, and the KL divergence from
        the sampler's policy to the proximal one, as `kl_to_sampler` of the losses measures it.
    """
    if not batch.mask.any():
        return batch, {}
    log_ratio = np.where(batch.mask, proximal.astype(np.float64) - batch.logprobs, 0.0)
    log_weight = log_ratio if mode == "token" else _over_rows(log_ratio, batch)
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


def _over_rows(values: NDArray[np.float64], batch: Batch) -> NDArray[np.float64]:
    """The sum over each row, at every token of it, [T]."""
    return np.repeat(np.add.reduceat(values, batch.offsets[:-1]), batch.lengths)
