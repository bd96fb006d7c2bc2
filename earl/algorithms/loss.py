"""Terms of the losses, each a function of [M] log-probs, and the importance correction."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from earl.algorithms.base import Algorithm, Stats, TokenInputs
from earl.batch import Batch

KlEstimator = Literal["k1", "k2", "k3"]
Excess = Literal["cap", "drop"]
Aggregation = Literal["token", "sequence", "constant"]

# Importance correction: rollouts may use older weights than the learner, and a sampler's arithmetic may differ from the
# learner's. In the decoupled objective of AReaL (arXiv 2505.24298) the clip holds to the proximal policy π_prox, the
# learner's before the update; its ratio to the sampler's policy is a weight beside the advantage, truncated from above
# (IMPALA, arXiv 1802.01561). Without it the clip cuts off tokens where the two differ before the first step.


def corrected(
    batch: Batch, proximal: NDArray[np.float32], mode: Literal["token", "sequence"], cap: float, excess: Excess = "cap"
) -> tuple[Batch, dict[str, float]]:
    """The batch with log-probs of the proximal policy and weighted advantages.

    Every loss is homogeneous in the advantage: a weight on the advantage is the same weight on the token's loss.

    Args:
        proximal: log-probs [T] at batch.mask of the learner's policy before the update.
        mode: by token, min(cap, π_prox / π_sampler) of each; by sequence, min(cap, the product of these ratios over
            all learned tokens of its row), where a row is one context.
        excess: with "drop", a weight above the cap or below 1 / cap is 0 (IcePop, arXiv 2510.18855).

    Returns:
        the batch, and over the learned tokens the mean weight, the share that was capped or dropped, and the KL
        divergence from the sampler's policy to the proximal one, as `kl_to_sampler` of the losses measures it.
    """
    if not batch.mask.any():
        return batch, {}
    log_ratio = np.where(batch.mask, proximal.astype(np.float64) - batch.logprobs, 0.0)
    log_weight = log_ratio
    if mode == "sequence":
        log_weight = np.repeat(np.add.reduceat(log_ratio, batch.offsets[:-1]), batch.lengths)
    weight, beyond = np.exp(np.minimum(log_weight, np.log(cap))), log_weight > np.log(cap)
    if excess == "drop":
        beyond = np.abs(log_weight) > np.log(cap)
        weight[beyond] = 0.0
    learned = log_ratio[batch.mask]
    stats = {
        "correction/weight": float(weight[batch.mask].mean()),
        "correction/capped": float(beyond[batch.mask].mean()),
        "kl_to_sampler": float((np.expm1(learned) - learned).mean()),
    }
    advantages = (batch.advantages * weight).astype(np.float32)
    logprobs = np.where(batch.mask, proximal, batch.logprobs).astype(np.float32)
    return replace(batch, advantages=advantages, logprobs=logprobs), stats


def clipped_surrogate(
    inputs: TokenInputs, ratio: Tensor, bounds: tuple[float, float], dual: float | None = None
) -> tuple[Tensor, Stats]:
    """-min(ratio·A, clip(ratio)·A) of each token [M] (PPO, arXiv 1707.06347, equation 7), and with `dual` never more
    than -dual·A where A < 0 (arXiv 1912.09729, equation 5). `clip_fraction` counts where a bound holds, which is where
    the token has no gradient."""
    plain, clipped = ratio * inputs.advantages, ratio.clamp(*bounds) * inputs.advantages
    objective = torch.minimum(plain, clipped)
    if dual is not None:
        floor = dual * inputs.advantages
        objective = torch.where(inputs.advantages < 0, torch.maximum(objective, floor), objective)
    return -objective, {"clip_fraction": (objective != plain).float().sum(), **ratio_stats(ratio)}


def clipped_reinforce(inputs: TokenInputs, bounds: tuple[float, float]) -> tuple[Tensor, Stats]:
    """-clip(ratio)·A·log π of each token [M], without gradient through the ratio: no token is cut off."""
    ratio = (inputs.logprobs - inputs.old_logprobs).detach().exp()
    weight = ratio.clamp(*bounds)
    losses = -weight * inputs.advantages * inputs.logprobs
    return losses, {"clip_fraction": (weight != ratio).float().sum(), **ratio_stats(ratio)}


def importance_weighted(inputs: TokenInputs) -> tuple[Tensor, Stats]:
    """REINFORCE with importance weights, -ratio·A of each token [M]: its gradient on policy is that of -A·log π."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return -(ratio * inputs.advantages), ratio_stats(ratio)


class Clipped(Algorithm):
    """An algorithm with the clipped surrogate per token."""

    clip: float = Field(0.2, gt=0)
    """Importance ratios are clipped to [1 - clip, 1 + clip_high]."""
    clip_high: float | None = Field(None, gt=0)
    """The distance of the upper bound from 1; absent: as clip."""
    dual_clip: float | None = Field(None, gt=1)
    """The largest ratio that counts where the advantage is negative, such as 3; absent: none."""

    @property
    def bounds(self) -> tuple[float, float]:
        return 1 - self.clip, 1 + (self.clip if self.clip_high is None else self.clip_high)

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        ratio = (inputs.logprobs - inputs.old_logprobs).exp()
        return clipped_surrogate(inputs, ratio, self.bounds, self.dual_clip)


def row_means(values: Tensor, rows: Tensor) -> Tensor:
    """The mean over each token's row, at every token [M]."""
    size = int(rows.max()) + 1 if len(rows) else 0
    sums = values.new_zeros(size).index_add(0, rows, values)
    return (sums / torch.bincount(rows, minlength=size))[rows]


def kl_to_reference(inputs: TokenInputs, estimator: KlEstimator = "k3") -> Tensor:
    """KL(π ‖ π_ref) of each token [M] by an estimator of joschu.net/blog/kl-approx.html, r = π_ref/π: k1 = -log r,
    k2 = (log r)²/2, or k3 = r - 1 - log r (GRPO, equation 4).

    As losses: k2 has the gradient of the KL divergence on policy, k3 one of its own that agrees near π_ref, and k1
    none on average."""
    return kl_estimate(inputs.reference - inputs.logprobs, estimator)


def kl_estimate(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """The same of log r."""
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def aggregated(losses: Tensor, rows: Tensor, mode: Aggregation, tokens: int, num_rows: int, constant: int) -> Tensor:
    """The losses of a micro-batch's tokens [M], summed so that the sum over all micro-batches of a minibatch, divided
    by its tokens, is the mean of `Algorithm.aggregation`. tokens, num_rows: of the whole minibatch, learned from."""
    if mode == "token":
        return losses.sum()
    per_row = torch.bincount(rows)[rows] if mode == "sequence" else constant
    return (losses / per_row).sum() * (tokens / num_rows)


def ratio_stats(ratio: Tensor) -> Stats:
    """Sums of the importance ratio and of the approximate KL divergence to the sampler's policy."""
    kept = ratio.detach()
    return {"ratio": kept.sum(), "kl_to_sampler": (kept - 1 - kept.log()).sum()}
