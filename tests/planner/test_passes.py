"""How long a learner's passes take: arithmetic where the link is fast, what FSDP fetches where it is slow."""

from dataclasses import replace

import pytest

from earl.parallel.footprint import Training
from earl.parallel.layout import Layout
from tests.planner.asked import asked

ALONE = Training(Layout(), 16_384, float_bytes=2, recompute=False, offload=False, lora_rank=0, reference=False)


def speed(stage: str, way: Training = ALONE, context: int = 4096) -> float:
    question = asked("2x8xH100", model="Qwen2.5-7B", network_gbps=8)  # 1 GB/s
    return way.tokens / way.layout.tp / question.costs.pass_seconds(way, context, stage)


def test_a_backward_pass_is_two_forward_passes_and_recomputing_is_one_more() -> None:
    forward = speed("experience")
    assert speed("update") == pytest.approx(forward / 3)
    assert speed("update", replace(ALONE, recompute=True)) == pytest.approx(forward / 4)


def test_a_forward_pass_takes_at_least_two_products_for_each_parameter() -> None:
    most = 989e12 / (2 * 7.07e9)  # of 7.6 billion parameters 0.54 billion are embeddings, which are looked up
    assert 0.25 * most < speed("experience") < most


def test_a_slow_link_between_hosts_is_waited_for() -> None:
    many = replace(ALONE, layout=Layout(16))
    # 7.6 billion parameters x 2 bytes, half of it from the other host over 1 GB/s: 7.6 s for 16,384 tokens
    assert speed("experience", many) == pytest.approx(16_384 / 7.62, rel=0.01)
    # twice for the passes, and gradients in 32 bits once
    assert speed("update", many) == pytest.approx(16_384 / 7.62 / 4, rel=0.01)
    assert speed("experience", replace(many, tokens=32_768)) == pytest.approx(2 * speed("experience", many))


def test_longer_rows_take_more_attention() -> None:
    assert speed("experience", context=16_384) < speed("experience")
