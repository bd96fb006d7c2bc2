"""Runs on GPUs and clusters that cannot be: each is refused in one line with exit code 2, and nothing is written."""

import socket
import sys
from pathlib import Path

import pytest

from earl.placement.ray.inventory import installed

HERE = ["--placement", "colocated"]
on_ray = pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")


def setting(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a laptop."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def refused(earl, tiny: Path, tmp_path: Path):
    """Says what a training is refused with, and that nothing was written."""

    def said(*arguments: object) -> str:
        answer = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", *arguments)
        assert answer.code == 2, answer.err
        assert answer.out == ""
        assert answer.err.startswith("error: ") or "Usage: " in answer.err
        assert "Traceback" not in answer.err
        assert not (tmp_path / "runs").exists()
        return answer.err

    return said


@on_ray
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "8xH100"], ["asks for 1 x 8 = 8 GPUs, this machine has", "and no GPU", "--dry-run alone plans"]),
        (["--gpus", "8xH1000"], ["placement.gpus: unknown kind of GPU 'H1000'; did you mean 'H100'?"]),
        (["--gpus", "eight"], ["placement.gpus: 'eight' is not of the form HOSTSxGPUSxKIND"]),
        (["--placement", "collocated"], ["'collocated' is not one of", "'colocated'"]),
        (
            ["--placement", "embedded", "--gpus", "8xH100"],
            ["placement.gpus = '8xH100' is read by the placements on Ray"],
        ),
        (["--address", "127.0.0.1"], ["placement.address = '127.0.0.1' is not HOST:PORT"]),
        (["--address", "nobody.invalid:6379"], ["no Ray cluster answers there", "check host and port"]),
        ([*HERE, *setting("placement.dp=1000")], ["= 1000 + 1 processes need", "this machine has"]),
        ([*HERE, *setting("placement.tp=3")], ["placement.tp = 3: the model has 2 attention heads", "one of 1, 2"]),
        ([*HERE, *setting("placement.samplers=9")], ["placement.samplers = 9 must not be larger than", "= 4"]),
        ([*HERE, *setting("sampler.tp=3")], ["sampler.tp = 3: the model has 2 attention heads", "one of 1, 2"]),
        (
            [*HERE, *setting("sampler.tp=2"), *setting("placement.environments=1")],
            ["sampler.tp = 2 and placement.environments = 1", "leave one of the two out"],
        ),
        (setting("sampler.tp=2"), ["sampler.tp = 2 splits earl's own sampler", "set placement.kind to colocated"]),
        ([*HERE, *setting("sampler.compiled=true")], ["sampler.compiled = True is read by vLLM alone"]),
        (
            [*HERE, *setting("placement.max_staleness=1")],
            ["placement.max_staleness = 1 needs rollout and learner apart"],
        ),
        ([*HERE, *setting("learner.offload=true")], ["learner.offload = True", "here are no GPUs"]),
        (setting("placement.max_staleness=1"), ["placement.max_staleness = 1 needs rollout and learner apart"]),
        (setting("placement.dp=2"), ["placement.dp = 2 is read by the placements on Ray alone"]),
        (setting("learner.dtype=bfloat16"), ["learner.dtype = 'bfloat16' is read by the placements on Ray alone"]),
        (setting("learner.lora_alpha=2"), ["learner.lora_alpha = 2.0 scales adapters", "set learner.lora_rank too"]),
        (setting("algorithm.correction=token"), ["algorithm.correction = 'token' weighs", "leave it out"]),
        (["--model", "Qwen2.5-27B"], ["no model at 'Qwen2.5-27B'", "did you mean 'Qwen2.5-7B'?"]),
        (["--model", "Qwen2.5-72B"], ["a model of 72,706,203,648 parameters needs", "this machine has"]),
        ([*HERE, "--model", "Qwen2.5-72B"], ["= 1 + 1 processes need", "this machine has", "smaller model"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_cluster_that_cannot_be(refused, arguments: list[str], words: list[str]) -> None:
    line = refused(*arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("ray", HERE, "ray"),
        ("ray", ["--address", "127.0.0.1:6379"], "ray"),
        ("vllm", setting("sampler.engine=vllm"), "vllm"),
        ("peft", setting("learner.lora_rank=4"), "lora"),
    ],
    ids=["ray", "ray at an address", "vllm", "peft"],
)
def test_a_library_that_is_not_installed(
    refused, monkeypatch: pytest.MonkeyPatch, library: str, arguments: list[str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as Python itself marks what cannot be imported
    assert f"needs {library}, which is not installed; pip install 'earl[{extra}]'" in refused(*arguments)


@on_ray
def test_an_address_where_nobody_listens(refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "no Ray cluster answers there (Connection refused)" in refused("--address", f"127.0.0.1:{port}")


def test_gpus_elsewhere_are_planned_for_without_them(earl, tiny: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    plan = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--dry-run", "--gpus", "16x8xH100"]
    said = earl(*plan, "--model", "Qwen2.5-72B")
    assert said.code == 0, said.err
    assert "Qwen2.5-72B of 72,706,203,648 parameters, colocated" in said.out
    assert "learner  128 x 1 GPU  (dp 64 x tp 2 x replicas 8), joined by collectives" in said.out
    assert "memory of each GPU, at least, of 79.6 GiB" in said.out
    told = earl(*plan, "--model", "Qwen2.5-72B", "--json").json
    placed, place = told["placed"], told["recipe"]["placement"]
    assert (place["kind"], placed["gpu"], placed["on_paper"]) == ("colocated", "H100", True)
    assert (place["dp"], place["tp"], place["replicas"]) == (64, 2, 8)
    assert placed["update"]["peak"] < placed["device_bytes"]
    assert not (tmp_path / "runs").exists()


def test_a_well_known_model_whose_weights_cannot_be_had(refused, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    line = refused("--model", "Qwen2.5-0.5B", *setting("context.limit=600", "agent.max_turn_tokens=8"))
    assert "no model at 'Qwen2.5-0.5B', which is Qwen/Qwen2.5-0.5B-Instruct: there is no such folder, and" in line
    assert "check name and connection, or give a folder" in line


@on_ray
def test_a_recipe_for_a_laptop_says_what_a_cluster_does_not_read(earl, tiny: Path) -> None:
    said = earl("train", "tictactoe", "--config", tiny, "--dry-run", *HERE)
    assert "5,248 parameters, colocated (which does not read run.processes = 1)" in said.out
