"""Attention that goes on in a row, against the same attention with a mask."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from earl.engine.attention import continued, spans


def masked(query, key, value, scaling):
    """Query i of n sees the first p + i + 1 of p + n keys."""
    n, total = query.shape[2], key.shape[2]
    mask = torch.arange(total)[None] <= torch.arange(n)[:, None] + total - n
    return scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)


def drawn(heads, kv_heads, n, before):
    generator = torch.Generator().manual_seed(7)
    shapes = (1, heads, n, 8), (1, kv_heads, before + n, 8), (1, kv_heads, before + n, 8)
    return [torch.randn(shape, generator=generator, dtype=torch.float32).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "before"), [(4, 4, 6, 3), (4, 2, 1, 9), (4, 1, 9, 1), (2, 2, 700, 900)]
)
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_results_and_gradients_are_those_of_a_mask(heads, kv_heads, n, before, scaling):
    given = drawn(heads, kv_heads, n, before)
    ours, theirs = continued(*given, scaling), masked(*given, scaling)
    assert torch.allclose(ours, theirs, atol=2e-6)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    for own, other in zip(
        *(torch.autograd.grad((made * weights).sum(), given) for made in (ours, theirs)), strict=True
    ):
        assert torch.allclose(own, other, atol=2e-5)


def test_16_bits_stay_16_bits():
    given = [states.detach().bfloat16() for states in drawn(4, 2, 5, 11)]
    ours, theirs = continued(*given, None), masked(*given, None)
    assert ours.dtype == torch.bfloat16
    assert torch.allclose(ours.float(), theirs.float(), atol=0.02)


def test_rows_behind_the_one_that_goes_on_begin_anew():
    # Tokens 4 to 13 of rows of 7, 5 and 5: 3 tokens of the first with 4 before, and two more from their beginnings.
    states = [torch.randn(17, 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    query, key, value = states
    whole = spans((7, 5, 5), torch.device("cpu")).attended(query, key, value, None)
    part = spans((3, 5, 2), torch.device("cpu"), before=4).attended(query[4:14], key[:14], value[:14], None)
    assert torch.allclose(part, whole[4:14], atol=1e-6)
