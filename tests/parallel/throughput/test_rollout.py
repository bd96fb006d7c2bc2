"""Rollouts: waves follow from the KV room, and throughput from the waves."""

import pytest

from earl.parallel.hardware import devices
from earl.parallel.memory import known
from earl.parallel.throughput.rollout import Workload, rollout, tokens_per_second
from earl.parallel.throughput.step import Engine, fitted

QWEN = known("Qwen2.5-72B").shape
H100 = devices()["H100"]


def test_waves_are_how_often_the_room_is_filled() -> None:
    engine = Engine(QWEN, H100, 4)
    made = rollout(engine, Workload(0, 32_768, 32))
    at_once = made.kv_tokens_capacity // 32_768
    assert made.running == at_once
    assert made.waves == -(-32 // at_once)
    held = engine.weight_bytes + engine.reserve_bytes(fitted().values)
    assert held + made.kv_bytes <= 0.9 * H100.memory_bytes


def test_two_full_waves_take_twice_as_long() -> None:
    own = fitted().values
    engine = Engine(QWEN, H100, 4)
    fit = engine.kv_tokens(own) / 32_768
    one = tokens_per_second(engine, Workload(0, 32_768 * fit / 10, 10), own)
    two = tokens_per_second(engine, Workload(0, 32_768 * fit / 10, 20), own)
    assert two == pytest.approx(one, rel=1e-6)


def test_replies_of_unlike_length_wait_for_the_longest() -> None:
    """100 replies of 1,000 tokens at once, the longest of 4,000: 4,000 steps with 25 on average, not 1,000 with 100."""
    own = fitted().values
    engine = Engine(QWEN, H100, 8)
    alike = tokens_per_second(engine, Workload(0, 1000, 100), own)
    unlike = tokens_per_second(engine, Workload(0, 1000, 100, longest_reply_tokens=4000), own)
    assert alike / 4 < unlike < alike / 2


def test_what_does_not_fit_has_no_speed() -> None:
    made = rollout(Engine(QWEN, H100, 1), Workload(512, 512, 8))
    assert (made.running, made.waves, made.tokens_per_gpu_s) == (0, 0, None)


def test_an_estimate_lies_in_its_interval_and_says_that_it_is_predicted() -> None:
    speed = rollout(Engine(QWEN, H100, 4), Workload(512, 512, 8)).tokens_per_gpu_s
    assert speed.low < speed.value < speed.high


def test_the_paper_s_findings_follow() -> None:
    """EARL paper: 72B on H100, 32 responses: TP4 ahead at short contexts, TP8 at 16K and 32K."""

    def ahead(context: int) -> bool:
        speeds = [rollout(Engine(QWEN, H100, tp), Workload(0, context, 32)).tokens_per_gpu_s for tp in (4, 8)]
        return speeds[1].value > speeds[0].value

    assert [ahead(context) for context in (1024, 2048, 4096, 8192, 16_384, 32_768)] == [False] * 4 + [True] * 2
