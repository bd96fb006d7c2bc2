"""From hidden states to log-probs and entropies in slices of positions: the logits of all of them never exist together.

The output layer may be split by vocabulary over the processes of a group: each computes the logits of its own words,
and log-sum-exp, the target's logit and the entropy are put together by sums over the group.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from earl.parallel.memory import LOGITS_AT_ONCE, PRODUCT_AT_ONCE


def slice_positions(vocab: int) -> int:
    """How many positions' logits are made at once."""
    return max(1, LOGITS_AT_ONCE // vocab)


class TokenScores(torch.autograd.Function):
    """Log-probs of targets and entropies: forward keeps two numbers a position, backward computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        """Scores of M positions.

        Args:
            states: [M, H].
            weight: [V', H], this process's words.
            bias: [V'].
            targets: [M], less the number of this process's first word: those of others lie outside 0 … V' - 1.
            temperature: divides the logits.
            group: the processes that the words are split over; None: all are here.

        Returns:
            log-probs [M] and entropies [M], of 32 bits.
        """
        ctx.temperature = temperature
        step = slice_positions(weight.shape[0])
        log_sums, entropies, logprobs = (states.new_empty(len(states), dtype=torch.float32) for _ in range(3))
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            log_sums[span], target, mean = _summary(states[span], weight, bias, targets[span], temperature, group)
            logprobs[span] = target - log_sums[span]
            entropies[span] = log_sums[span] - mean
        ctx.save_for_backward(states, weight, bias, targets, log_sums, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of states (this process's part) and of the output layer.

        With p the distribution and H its entropy: ∂ log p(t)/∂z = 1[t] - p and ∂H/∂z = -p · (log p + H).
        """
        states, weight, bias, targets, log_sums, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = gradients
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        step = slice_positions(weight.shape[0])
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            logprobs = _logits(states[span], weight, bias, ctx.temperature).sub_(log_sums[span, None])
            of_logits = _of_logits(logprobs, targets[span], entropies[span], of_logprobs[span], of_entropies[span])
            del logprobs  # of a slice that is done nothing lives on into the next one
            narrow = of_logits.div_(ctx.temperature).to(weight.dtype)
            of_states[span] = narrow @ weight
            if of_weight is not None:
                _add_product(of_weight, narrow, states[span])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
            del of_logits, narrow
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        return of_states, of_weight, None if of_bias is None else of_bias.to(bias.dtype), None, None, None


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(states, weight, bias).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _summary(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    group: ProcessGroup | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each position: log-sum-exp, the target's logit, the mean logit under the distribution."""
    logits = _logits(states, weight, bias, temperature)
    highest = _over(logits.amax(dim=-1), ReduceOp.MAX, group)
    chosen, inside = _chosen(logits, targets)
    chances = (logits - highest[:, None]).exp_()
    parts = torch.stack([chances.sum(dim=-1), chosen * inside, chances.mul_(logits).sum(dim=-1)])
    total, target, weighted = _over(parts, ReduceOp.SUM, group)
    return highest + total.log(), target, weighted / total


def _of_logits(
    logprobs: Tensor, targets: Tensor, entropies: Tensor, of_logprobs: Tensor, of_entropies: Tensor
) -> Tensor:
    """The gradient of a slice of logits [m, V'], from their log-probs, which are overwritten."""
    chances = logprobs.exp()
    _, inside = _chosen(chances, targets)
    logprobs.add_(entropies[:, None]).mul_(-of_entropies[:, None]).sub_(of_logprobs[:, None])
    places = targets.clamp(0, chances.shape[1] - 1)[:, None]
    return chances.mul_(logprobs).scatter_add_(1, places, (of_logprobs * inside)[:, None])


def _chosen(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets' numbers [M], and whether they are among this process's words [M]."""
    inside = (targets >= 0) & (targets < logits.shape[1])
    return logits.gather(1, targets.clamp(0, logits.shape[1] - 1)[:, None])[:, 0], inside


def _add_product(total: Tensor, of_logits: Tensor, states: Tensor) -> None:
    """Add a slice's part of the output layer's gradient; a narrow one by groups of words, as each is widened first."""
    if total.dtype == of_logits.dtype:
        total.addmm_(of_logits.T, states)
        return
    words = max(1, PRODUCT_AT_ONCE // total.shape[1])
    for part, columns in zip(torch.split(total, words), torch.split(of_logits, words, dim=1), strict=True):
        part += columns.T @ states


def _over(values: Tensor, operation: Any, group: ProcessGroup | None) -> Tensor:
    if group is not None:
        all_reduce(values, operation, group)
    return values
