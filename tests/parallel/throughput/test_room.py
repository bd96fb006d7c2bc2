"""KV room: what weights and workspace leave of each device, written out."""

from dataclasses import replace

from earl.parallel.hardware import GIB, devices
from earl.parallel.memory import known
from earl.parallel.throughput.step import TENSORRT_LLM, Engine, Precision, fitted

QWEN = known("Qwen2.5-72B").shape
OWN = fitted().values


def test_room_is_what_is_left_of_the_share_that_vllm_takes() -> None:
    engine = Engine(QWEN, devices()["H100"], tp=4)
    weights = 72_706_203_648 * 2 / 4
    assert engine.weight_bytes == weights
    assert engine.token_bytes == 80 * 1024  # 320 KiB over four ranks
    room = int(0.9 * devices()["H100"].memory_bytes) - weights - engine.reserve_bytes(OWN)
    assert engine.kv_tokens(OWN) == int(room / (80 * 1024))


def test_tensorrt_takes_a_share_of_what_is_free() -> None:
    engine = Engine(QWEN, devices()["H100"], 8, Precision("fp8", "fp8"), TENSORRT_LLM)
    free = devices()["H100"].memory_bytes - engine.weight_bytes - engine.reserve_bytes(OWN)
    assert engine.room_bytes(OWN) == int(0.95 * free)
    assert engine.token_bytes == 20 * 1024


def test_fewer_heads_than_devices_are_copied() -> None:
    engine = Engine(known("Qwen2.5-7B").shape, devices()["H100"], 4)
    assert engine.token_bytes == replace(engine, tp=8).token_bytes == 14 * 1024  # 56 KiB of four heads, one for each


def test_what_does_not_fit_has_no_room() -> None:
    engine = Engine(known("Llama-3.1-405B").shape, devices()["H100"], 4, Precision("fp8"))
    assert engine.weight_bytes > 90 * GIB
    assert engine.kv_tokens(OWN) == 0
