"""Attention on a device against `scaled_dot_product_attention` row by row, in 32 bits on a CPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from earl.engine.attention import _aligned, _fused, attend, continued, spans

LENGTHS = (9, 4, 4, 13)
KINDS = [(torch.float32, 1e-4), (torch.bfloat16, 0.05)]


def states(tokens, dtype, device, heads=4, seed=0):
    """Made-up queries, keys or values [T, heads, 16], numbers that 16 bits hold, so that only arithmetic differs."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tokens, heads, 16, generator=generator).bfloat16()
    return drawn.to(device, dtype).requires_grad_()


def row_by_row(query, key, value, lengths, before=0):
    """[T, heads, D] in 32 bits; a row's queries see its keys up to their own."""
    query, key, value = (part.detach().cpu().float().requires_grad_() for part in (query, key, value))
    results, first, known = [], 0, 0
    for number, length in enumerate(lengths):
        seen = length + (0 if number else before)
        mask = torch.ones(length, seen, dtype=torch.bool).tril(seen - length)
        parts = (query[first : first + length], key[known : known + seen], value[known : known + seen])
        batched = (part.transpose(0, 1)[None] for part in parts)
        attended = scaled_dot_product_attention(*batched, mask, enable_gqa=True)
        results.append(attended[0].transpose(0, 1))
        first, known = first + length, known + seen
    return torch.cat(results), (query, key, value)


def assert_same(attended, ours, expected, theirs, tolerance):
    assert torch.allclose(attended.detach().cpu().float(), expected, atol=tolerance)
    weights = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    (attended.float() * weights.to(attended.device)).sum().backward()
    (expected * weights).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own.grad.cpu().float(), other.grad, atol=4 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_rows_attend_within_themselves(device, dtype, tolerance):
    own = states(30, dtype, device), states(30, dtype, device, 2, 1), states(30, dtype, device, 2, 2)
    attended = spans(LENGTHS, device).attended(*own, None)
    assert_same(attended, own, *row_by_row(*own, LENGTHS), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
def test_a_row_that_began_on_another_rank_goes_on(device, dtype, tolerance):
    # 30 queries, and 7 more keys and values of the first row's earlier tokens.
    own = states(30, dtype, device), states(37, dtype, device, 2, 1), states(37, dtype, device, 2, 2)
    attended = spans(LENGTHS, device, before=7).attended(*own, None)
    assert_same(attended, own, *row_by_row(*own, LENGTHS, before=7), tolerance)


def test_queries_behind_a_prefix_see_it_and_what_is_before_them(device):
    own = (
        states(9, torch.float32, device),
        states(14, torch.float32, device, 2, 1),
        states(14, torch.float32, device, 2),
    )
    attended = continued(*(part.transpose(0, 1)[None] for part in own), None)[0].transpose(0, 1)
    assert_same(attended, own, *row_by_row(*own, (9,), before=5), 1e-4)


def test_the_attention_of_gpus_aligns_the_last_query_with_the_last_key():
    own = [states(size, torch.float32, "cpu", heads) for size, heads in ((9, 4), (14, 2), (14, 2))]
    attended = _aligned(*(part.transpose(0, 1)[None] for part in own), None)[0].transpose(0, 1)
    assert_same(attended, own, *row_by_row(*own, (9,), before=5), 1e-4)


@pytest.mark.parametrize("before", [0, 7])
def test_one_kernel_takes_rows_of_any_lengths(before):
    # torch has it for CUDA alone; as fake tensors its arguments are checked, and its result has a shape.
    with FakeTensorMode():
        query, key, value = (torch.empty(size, 4, 16, dtype=torch.bfloat16) for size in (30, 30 + before, 30 + before))
        attended = _fused((query, key, value), spans(LENGTHS, torch.device("cpu"), before), None)
    assert attended.shape == (30, 4, 16) and attended.dtype == torch.bfloat16


def test_a_decoded_token_sees_what_its_mask_lets_it(device):
    query, key, value = (states(size, torch.float32, device, 4, seed) for seed, size in enumerate((1, 6, 6)))
    mask = torch.zeros(1, 1, 1, 6, device=device).masked_fill(torch.arange(6, device=device) > 3, -torch.inf)
    batched = [part.transpose(0, 1)[None] for part in (query, key, value)]
    attended, _ = attend(None, *batched, mask)
    expected, _ = row_by_row(query, key[:4], value[:4], (1,), before=3)
    assert torch.allclose(attended[0].cpu(), expected, atol=1e-4)
