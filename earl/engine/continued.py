"""Attention of queries that go on in a row whose beginning has keys and values alone.

On CPUs torch's kernel knows no causal attention with more keys than queries, and a mask of n × (p + n) numbers would be
kept for each layer. So what lies before is attended to in one piece, the queries' own tokens in another, and both are
put together by their log-sum-exps, as in ring attention (arXiv 2310.01889); the same kernel's backward pass gives the
gradients of either piece from output and log-sum-exp of the whole.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

_ATEN: Any = torch.ops.aten


def continued(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Queries of the last n of p + n tokens. Never run on a GPU yet.

    Args:
        query: [1, heads, n, D].
        key, value: [1, KV heads, p + n, D], p > 0.

    Returns:
        [1, heads, n, D].
    """
    if query.device.type == "cpu":
        attended: Tensor = _Continued.apply(query, key, value, scaling)  # type: ignore[no-untyped-call]
        return attended
    mask = causal_lower_right(query.shape[2], key.shape[2])
    shared = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=shared)


class _Continued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        parts, log_sums = zip(
            *(
                _ATEN._scaled_dot_product_flash_attention_for_cpu(query, k, v, 0.0, causal, scale=scaling)
                for k, v, causal in _pieces(query, key, value)
            ),
            strict=True,
        )
        log_sum = torch.logaddexp(*log_sums)
        shares = [(own - log_sum).exp()[..., None] for own in log_sums]
        attended: Tensor = (parts[0] * shares[0] + parts[1] * shares[1]).to(query.dtype)
        ctx.scaling = scaling
        ctx.save_for_backward(query, key, value, attended, log_sum)
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, log_sum = ctx.saved_tensors
        (before, own) = (
            _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
                gradients[0], query, k, v, attended, log_sum, 0.0, causal, scale=ctx.scaling
            )
            for k, v, causal in _pieces(query, key, value)
        )
        return before[0] + own[0], *(torch.cat(both, dim=2) for both in zip(before[1:], own[1:], strict=True)), None


def _pieces(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor, bool]]:
    """Keys and values of what lies before, and of the queries' own tokens, each of which sees those up to itself."""
    before = key.shape[2] - query.shape[2]
    return [
        (key[:, :, :before], value[:, :, :before], False),
        (key[:, :, before:], value[:, :, before:], True),
    ]
