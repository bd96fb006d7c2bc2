"""Steps: each cause written out, and where one outweighs another."""

from dataclasses import replace

import pytest

from earl.errors import EarlError
from earl.parallel.hardware import devices
from earl.parallel.memory import known
from earl.parallel.throughput.step import (
    TENSORRT_LLM,
    VLLM,
    VLLM_0_5,
    Engine,
    Precision,
    StepLoad,
    all_reduce_seconds,
    average_step,
    fitted,
    parts,
    step_seconds,
    token_seconds,
    uncalibrated,
    weight_bytes,
    weights_seconds,
)

LLAMA = known("Llama-3.1-8B").shape
MIXTRAL = known("Mixtral-8x7B").shape
H100, A100 = devices()["H100"], devices()["A100-80"]
OWN = fitted().values


def test_one_sequence_waits_for_weights() -> None:
    """7.5 billion numbers of 2 bytes: 15 GB at 3.35 TB/s; the words are looked up, not read."""
    seconds = weights_seconds(Engine(LLAMA, H100, 1), StepLoad(1, 0), OWN)
    read = (LLAMA.parameters - 128_256 * 4096) * 2
    assert seconds == pytest.approx(read / (H100.memory_bandwidth * OWN["memory"]), rel=1e-2)


def test_many_tokens_wait_for_products() -> None:
    seconds = weights_seconds(Engine(LLAMA, H100, 1), StepLoad(0, 0, prompt_tokens=100_000), OWN)
    products = 2 * parts(LLAMA).dense * 100_000
    assert seconds == pytest.approx(products / (H100.bf16_flops * OWN["compute"]), rel=0.01)


def test_contexts_of_eight_heads_are_read_at_full_speed_and_those_of_fewer_are_not() -> None:
    """8 heads: 128 KiB a token. Over 8 devices one each, three halvings."""
    engine = Engine(LLAMA, H100, 1)
    whole, split = (token_seconds(replace(engine, tp=tp), OWN) for tp in (1, 8))
    assert whole == pytest.approx(128 * 1024 / (H100.memory_bandwidth * OWN["kv"]))
    longer = step_seconds(engine, StepLoad(10, 1000), OWN) - step_seconds(engine, StepLoad(10, 0), OWN)
    assert longer == pytest.approx(OWN["scale"] * 10_000 * whole)
    assert split == pytest.approx(whole / 8 * (1 + 3 * OWN["heads"]))


def test_an_all_reduce_sends_what_others_have_not() -> None:
    """2 (tp - 1) / tp of the message: all of it over 2 devices, 1.75 times over 8."""
    times = [all_reduce_seconds(Engine(LLAMA, H100, tp), 1e9, OWN) for tp in (1, 2, 8)]
    fixed = OWN["all_reduce"] + OWN["all_reduce_large"]
    assert times[0] == 0
    assert (times[2] - fixed) / (times[1] - fixed) == pytest.approx(1.75, rel=1e-3)


def test_a_prompt_is_read_at_once_in_some_steps() -> None:
    """432 tokens a step of prompts of 2,048: in 432 / 2,048 of the steps."""
    engine = Engine(LLAMA, H100, 1)
    batch = StepLoad(27, 2000, prompt_tokens=432, prompt_context=1024)
    without = step_seconds(engine, StepLoad(27, 2000), OWN)
    reading = step_seconds(engine, StepLoad(27, 2000, 2048, 1024), OWN)
    share = 432 / 2048
    assert average_step(engine, batch, 2048, OWN) == pytest.approx(without * (1 - share) + reading * share)


def test_a_mixture_reads_the_experts_that_a_batch_hits() -> None:
    """2 of 8: a token hits a quarter; two tokens hit 1 - 0.75^2 = 0.4375 of them; a hundred all."""
    part = parts(MIXTRAL)
    assert part.experts == 3 * 32 * 4096 * 14_336 * 8
    assert part.share == 0.25
    assert part.read(1) == pytest.approx(part.dense + part.experts * 0.25)
    assert part.read(2) == pytest.approx(part.dense + part.experts * 0.4375)
    assert part.read(100) == pytest.approx(part.dense + part.experts)
    assert weight_bytes(MIXTRAL, Precision()) == 2 * MIXTRAL.parameters


def test_experts_multiply_tiles_that_are_half_empty() -> None:
    """Of 8,192 tokens each expert is given 2,048, and half a tile of 32 beside: 1.6 % more."""
    seconds = weights_seconds(Engine(MIXTRAL, H100, 1), StepLoad(0, 0, prompt_tokens=8192), OWN)
    part = parts(MIXTRAL)
    products = part.dense * 8192 + part.experts * (2048 + 32) / OWN["experts"]
    assert seconds == pytest.approx(2 * products / (H100.bf16_flops * OWN["compute"]), rel=0.1)


def test_words_keep_16_bits_where_layers_are_quantized() -> None:
    words = 2 * 128_256 * 4096
    assert weight_bytes(LLAMA, Precision("fp8")) == LLAMA.parameters - words + 2 * words


def test_eight_bits_are_multiplied_twice_as_fast_where_a_device_can() -> None:
    assert Precision("fp8").flops(H100) == 2 * H100.bf16_flops
    assert Precision("fp8").flops(A100) == A100.bf16_flops
    assert Precision("fp4").flops(devices()["B200"]) == 4 * devices()["B200"].bf16_flops
    assert Precision("fp4").flops(H100) == 2 * H100.bf16_flops  # widened to eight bits
    assert Precision("fp8").narrow(H100)
    assert not Precision("fp8").narrow(A100)


def test_keys_and_values_are_of_16_bits_unless_told_otherwise() -> None:
    assert Precision("fp8").kv_bytes == Precision("bf16").kv_bytes == 2
    assert Precision("fp32").kv_bytes == 4
    assert Precision("bf16", "fp8").kv_bytes == 1
    with pytest.raises(EarlError, match="unknown kind of number 'bf8'; did you mean"):
        Precision("bf8")


def test_a_version_an_engine_or_a_kind_of_number_in_no_table_widens_what_is_known() -> None:
    """An engine of the tables keeps its own deviations; every factor that is new adds its variance."""
    seen = Engine(LLAMA, H100, 1, Precision("fp8"), VLLM_0_5)
    others = [
        (replace(seen, software=VLLM), ("version",)),
        (replace(seen, software=TENSORRT_LLM), ("version",)),  # another version than the fitted one
        (replace(seen, device=devices()["B200"]), ("device",)),
        (replace(seen, precision=Precision("fp4")), ("precision",)),
    ]
    assert uncalibrated(seen) == ()
    known, at = fitted(seen), list(fitted(seen).values).index("scale")
    for engine, new in others:
        assert uncalibrated(engine) == new
        assert fitted(engine).covariance[at, at] > known.covariance[at, at]
    assert known.values["host"] > 2 * fitted(replace(seen, software=TENSORRT_LLM)).values["host"]


def test_everything_takes_longer_by_the_scale() -> None:
    engine, load = Engine(LLAMA, H100, 1), StepLoad(8, 1000)
    slow = step_seconds(engine, load, {**OWN, "scale": 1.5 * OWN["scale"]})
    assert slow == pytest.approx(1.5 * step_seconds(engine, load, OWN))
