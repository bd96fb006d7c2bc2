"""Copies of an engine over several hosts, where one cannot hold the weights."""

import pytest

from earl.parallel.throughput.rollout import Workload, tokens_per_second
from earl.planner.plan import plan
from earl.planner.sheet import fp8_hint, launch_flags
from tests.planner.asked import asked

PLANNED = plan(asked(model="Llama-3.1-405B", contexts="1024,8192", responses="8,64"))


def test_405_billion_parameters_in_16_bits_have_a_layout() -> None:
    costs = PLANNED.asked.costs
    engine = costs.engine(8)
    # 405,853,388,800 parameters x 2 bytes over 8 GPUs of each of 2 hosts with 63 of 126 layers: 50.7 GB.
    assert (engine.pp, engine.devices, engine.stage) == (2, 16, 63)
    assert engine.weight_bytes == pytest.approx(405_853_388_800 * 2 / 16, rel=1e-6)
    assert engine.token_bytes == 2 * 63 * 128 * 2  # a key and a value of one of 8 heads in each layer of the stage
    assert [part.layout.size for part in PLANNED.steps[0].parts if part.stage == "rollout"] == [128]  # 8 copies of 16
    assert all((cell.throughput is not None) == (cell.tp == 8) for cell in PLANNED.cells if cell.stage == "rollout")


def test_a_host_that_holds_the_weights_is_enough() -> None:
    costs = asked().costs
    assert {costs.engine(tp).pp for tp in (1, 2, 4, 8)} == {1}


def test_stages_take_turns_with_batches() -> None:
    engine = PLANNED.asked.costs.engine(8)
    values, one = PLANNED.asked.costs.values, Workload(0, 512, 1)
    alone = tokens_per_second(engine, one, values)
    # A second response is in the other stage while the first one is in its own: no slower.
    assert tokens_per_second(engine, Workload(0, 512, 2), values) == pytest.approx(2 * alone)
    assert tokens_per_second(engine, Workload(0, 512, 64), values) < 64 * alone


def test_vllm_is_told_of_the_stages() -> None:
    flags = launch_flags(PLANNED, "vllm")
    assert flags[0].startswith("# context 1024: rollout 8 x TP 8 x PP 2, update ")
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray" in flags[1]


def test_a_narrower_engine_is_a_choice_with_its_risk() -> None:
    gain, risk = fp8_hint(PLANNED)
    assert gain.startswith("--weights fp8 instead of bf16: rollout ")
    assert "not the policy that learns" in risk
    assert not fp8_hint(plan(asked("8xA100", model="Qwen2.5-7B", contexts="1024")))  # multiplies no 8-bit numbers
