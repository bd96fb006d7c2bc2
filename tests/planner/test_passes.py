"""How long a learner's passes take: arithmetic where the link is fast, what FSDP fetches where it is slow."""

from dataclasses import replace

import pytest

from earl.parallel.catalogue import known
from earl.parallel.hardware import devices
from earl.planner.stages import Passing, reference, update

ALONE = Passing(
    known("Qwen2.5-7B").shape, devices()["H100"], dp=1, tp=1, hosts=1, tokens=16_384, context=4096, across=1.0
)


def test_a_backward_pass_is_two_forward_passes_and_recomputing_is_one_more() -> None:
    forward = reference(ALONE).value
    assert update(ALONE, False).value == pytest.approx(forward / 3)
    assert update(ALONE, True).value == pytest.approx(forward / 4)


def test_a_forward_pass_takes_at_least_two_products_for_each_parameter() -> None:
    most = 989e12 / (2 * 7.07e9)  # of 7.6 billion parameters 0.54 billion are embeddings, which are looked up
    assert 0.25 * most < reference(ALONE).value < most


def test_a_slow_link_between_hosts_is_waited_for() -> None:
    many = replace(ALONE, dp=16, hosts=2, across=1e9)
    # 7.6 billion parameters x 2 bytes, half of it from the other host over 1 GB/s: 7.6 s for 16,384 tokens
    assert reference(many).value == pytest.approx(16_384 / 7.62, rel=0.01)
    # twice for the passes, and gradients in 32 bits once
    assert update(many, False).value == pytest.approx(16_384 / 7.62 / 4, rel=0.01)
    assert reference(replace(many, tokens=32_768)).value == pytest.approx(2 * reference(many).value)


def test_longer_rows_take_more_attention() -> None:
    assert reference(replace(ALONE, context=16_384)).value < reference(ALONE).value
