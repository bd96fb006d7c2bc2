"""Causal attention over rows that lie end to end in one sequence, without padding and without a mask.

All models use this attention. Given the rows (`rows=`), it attends within each; without them it takes a mask as
`transformers`' own `sdpa` does, which the sampler needs to decode with a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

# Queries that continue a row whose earlier tokens have keys and values only. On CPUs torch's kernel has no causal
# attention with more keys than queries, and a mask of n × (p + n) numbers would be kept for each layer. So the prefix
# and the queries' own tokens are attended to separately and combined by their log-sum-exps, as in ring attention (arXiv
# 2310.01889); the kernel's backward pass gives the gradients of either part from output and log-sum-exp of the whole.

_ATEN: Any = torch.ops.aten


def continued(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attention of the last n of p + n tokens, p > 0: query [1, heads, n, D], key and value [1, KV heads, p + n, D];
    returns [1, heads, n, D]."""
    if query.device.type == "cpu":
        attended: Tensor = _Continued.apply(query, key, value, scaling)  # type: ignore[no-untyped-call]
        return attended
    return _aligned(query, key, value, scaling)


def _aligned(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """`continued` on GPUs, whose kernels align the last query with the last key. Never run there."""
    mask = causal_lower_right(query.shape[2], key.shape[2])
    shared = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=shared)


class _Continued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        forward = _ATEN._scaled_dot_product_flash_attention_for_cpu
        both = [forward(query, k, v, 0.0, causal, scale=scaling) for k, v, causal in _pieces(query, key, value)]
        parts, log_sums = zip(*both, strict=True)
        log_sum = torch.logaddexp(*log_sums)
        shares = [(own - log_sum).exp()[..., None] for own in log_sums]
        attended: Tensor = (parts[0] * shares[0] + parts[1] * shares[1]).to(query.dtype)
        ctx.scaling = scaling
        ctx.save_for_backward(query, key, value, attended, log_sum)
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, log_sum = ctx.saved_tensors
        backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        before, own = (
            backward(gradients[0], query, k, v, attended, log_sum, 0.0, causal, scale=ctx.scaling)
            for k, v, causal in _pieces(query, key, value)
        )
        return before[0] + own[0], *(torch.cat(both, dim=2) for both in zip(before[1:], own[1:], strict=True)), None


def _pieces(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor, bool]]:
    """Keys and values of the prefix (not causal), and of the queries' own tokens (causal)."""
    before = key.shape[2] - query.shape[2]
    return [(key[:, :, :before], value[:, :, :before], False), (key[:, :, before:], value[:, :, before:], True)]


ATTENTION = "earl"  # its name in `transformers`


class PackedRows(Protocol):
    """Tokens of rows that lie end to end, as this process computes them."""

    @property
    def positions(self) -> Tensor:
        """The position of each token in its row, [1, T]."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention within each row, [T, heads, D] as the queries; keys and values have KV heads."""


@dataclass(frozen=True, slots=True)
class Spans:
    """N rows in a sequence of T tokens: lengths (7, 5, 5) have runs ((1, 7), (2, 5)) and offsets [0, 7, 12, 17]."""

    lengths: tuple[int, ...]
    offsets: Tensor  # [N + 1], int32, on the model's device
    before: int = 0
    """Tokens of the first row before this sequence; for these there are keys and values only."""

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Consecutive rows of one length: (count, length)."""
        return tuple((len([*group]), length) for length, group in groupby(self.lengths))

    @property
    def positions(self) -> Tensor:
        lengths = torch.tensor(self.lengths, device=self.offsets.device)
        starts = torch.repeat_interleave(self.offsets[:-1].long(), lengths)
        return (torch.arange(sum(self.lengths), device=self.offsets.device) - starts)[None]

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention within each row; keys and values are [before + T, KV heads, D]."""
        if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
            return _fused((query, key, value), self, scaling)
        if not self.before:
            return _run_by_run((query, key, value), self, scaling)
        first = self.lengths[0]
        known = first + self.before
        attended = continued(_alone(query[:first]), _alone(key[:known]), _alone(value[:known]), scaling)
        attended = attended[0].transpose(0, 1)
        if len(self.lengths) == 1:
            return attended
        others = query[first:], key[known:], value[known:]
        return torch.cat([attended, _run_by_run(others, spans(self.lengths[1:], query.device), scaling)])


def spans(lengths: tuple[int, ...], device: torch.device, before: int = 0) -> Spans:
    return Spans(lengths, torch.tensor((0, *lengths), device=device).cumsum(0).int(), before)


NO_MASK = torch.zeros(1, 1, 1, 1)
"""`transformers` passes a 4-dimensional mask through, instead of building one of T × T numbers."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rows: PackedRows | None = None,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attention as `transformers` calls it: query [B, heads, T, D], key and value [B, KV heads, T, D]. Returns [B, T,
    heads, D], and None for the attention weights, which are never computed."""
    del module, arguments  # such as dropout, which no model here uses
    if rows is None:
        causal = attention_mask is None and query.shape[2] > 1
        return batched(query, key, value, attention_mask, causal, scaling).contiguous(), None
    packed = [states[0].transpose(0, 1) for states in (query, key, value)]  # [T, heads, D]
    return rows.attended(packed[0], packed[1], packed[2], scaling)[None], None


def _alone(packed: Tensor) -> Tensor:
    """One row [T, heads, D] as a batch of one [1, heads, T, D]."""
    return packed.transpose(0, 1)[None]


def _run_by_run(packed: Sequence[Tensor], rows: Spans, scaling: float | None) -> Tensor:
    """Rows of one length go together: no padding, and memory grows with T, not with its square."""
    sizes = [count * length for count, length in rows.runs]
    attended = []
    for (count, length), *parts in zip(rows.runs, *(torch.split(states, sizes) for states in packed), strict=True):
        query, key, value = (part.view(count, length, *part.shape[1:]).transpose(1, 2) for part in parts)
        attended.append(batched(query, key, value, None, length > 1, scaling).flatten(0, 1))
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def batched(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None
) -> Tensor:
    """[B, T, heads, D]. Grouped-query heads share keys and values without copies, which autograd would keep."""
    shared = query.shape[1] != key.shape[1]
    attended = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scaling, enable_gqa=shared)
    return attended.transpose(1, 2)


def _fused(packed: Sequence[Tensor], rows: Spans, scaling: float | None) -> Tensor:
    """One kernel for rows of any lengths. Never run on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (states.contiguous() for states in packed)
    longest = max(rows.lengths)
    behind = rows.offsets.clone()
    behind[1:] += rows.before
    furthest = max(longest, rows.lengths[0] + rows.before)
    attended = varlen_attn(
        *(query, key, value, rows.offsets, behind, longest, furthest),
        scale=scaling,
        window_size=(-1, 0),  # causal; a row's last query is aligned with its last key
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, Tensor)
    return attended


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
