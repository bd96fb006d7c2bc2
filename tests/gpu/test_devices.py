"""What processes do because there is a GPU: choose, count and measure; each with its stand-in where there is none."""

import os
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from earl.benchmarks.footprint import CASES, cases_of
from earl.config import Config, SamplerConfig
from earl.dispatch.transports.rendezvous import backend_for
from earl.engine.samplers import choose, sampler_dtype
from earl.engine.sharding import mesh as meshes
from earl.engine.vllm import device as vllm_device
from earl.engine.vllm.device import Gpu
from earl.errors import EarlError, OutOfMemory
from earl.placement.ray import actor_setup, inventory
from earl.placement.ray.actor_group import Member
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.row_exchange import row_device

gpu = pytest.mark.gpu
MIB = 1 << 20


def test_the_backend_follows_from_the_device():
    assert backend_for(torch.device("cpu")) == "gloo"
    assert backend_for(torch.device("cuda:1")) == "cpu:gloo,cuda:nccl"


def test_processes_on_gpus_join_with_both_backends(monkeypatch):
    told = {}
    store = SimpleNamespace(plain="plain")
    monkeypatch.setattr(meshes, "join_store", lambda place, seconds: store)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: told.update(device=device))
    monkeypatch.setattr(
        distributed, "init_process_group", lambda *backend, **other: told.update(other, backend=backend)
    )
    device = torch.device("cuda:1")
    assert meshes.join_group(1, 2, None, None, device, 9.0) is store
    assert (told["backend"], told["device"], told["device_id"]) == (("cpu:gloo,cuda:nccl",), device, device)
    assert told["store"] == "plain"  # NCCL's own threads read it


@gpu
def test_a_group_of_one_sums_on_the_device_and_in_host_memory(monkeypatch):
    from earl.benchmarks.layouts import free_port
    from earl.parallel.layout import Layout

    with meshes.joined_mesh(0, Layout(), "127.0.0.1", free_port(), "cuda:0"):
        for place in ("cuda:0", "cpu"):
            number = torch.ones(3, device=place)
            distributed.all_reduce(number)
            assert number.tolist() == [1.0] * 3


def test_rows_go_by_way_of_gpus_where_each_process_has_its_own():
    rank, other, sharing = Member("rank", None, devices=["0"]), Member("worker", None, devices=["1"]), Member("w", None)
    assert row_device([rank, other]) == "cuda:0"
    assert row_device([rank, sharing]) == "cpu"  # as where samplers and learner ranks take turns
    assert row_device([sharing]) == "cpu"


@gpu
def test_a_gpu_takes_vllm():
    assert choose() == "vllm"
    assert vllm_device.device() == Gpu()


def test_without_a_gpu_the_local_sampler_is_taken(monkeypatch):
    for there, engine in ((False, "local"), (True, "vllm")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose() == engine
        assert isinstance(vllm_device.device(), Gpu) == there


def test_weights_travel_in_what_the_sampler_computes_in(monkeypatch):
    local, vllm = (
        Config(env={"name": "tictactoe"}, sampler=SamplerConfig(engine=engine)) for engine in ("local", "vllm")
    )
    assert sampler_dtype(local) == sampler_dtype(vllm) == torch.float32  # vLLM on a CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert sampler_dtype(local) == torch.float32
    assert sampler_dtype(vllm) == torch.bfloat16


@gpu
def test_this_machines_gpus_are_counted_and_known():
    found = inventory.here(1 << 34)
    assert found.gpus == torch.cuda.device_count()
    total = torch.cuda.get_device_properties(0).total_memory
    assert found.device is None or found.device.memory_bytes == pytest.approx(total, rel=0.05)


def test_a_gpu_that_nvidia_smi_lists_is_known(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559'\necho 'NVIDIA H100 80GB HBM3, 81559'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=79 * 1024 * MIB)
    )
    found = inventory.here(1 << 34)
    assert (found.gpus, found.gpus_per_host, found.device.kind) == (2, 2, "H100")
    assert found.device.memory_bytes == 79 * 1024 * MIB


@gpu
def test_a_stage_is_measured_on_the_device():
    budget = Budget(None)
    held = torch.zeros(MIB, device="cuda")
    with budget.stage("update"):
        torch.zeros(16 * MIB, device="cuda")  # 64 MiB
    assert budget.peaks()["update"] == pytest.approx(68 * MIB, abs=2 * MIB)
    del held


@gpu
def test_a_full_device_is_out_of_memory_and_usable_again():
    budget = Budget(None, "learner rank 0")
    with pytest.raises(OutOfMemory, match="learner rank 0"), budget.stage("update"):
        torch.zeros(1 << 50, device="cuda")
    with budget.stage("update"):
        torch.zeros(MIB, device="cuda")


def test_a_budget_on_a_gpu_reads_the_devices_peak(monkeypatch):
    begun = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 64 * MIB)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: begun.append(1))
    budget = Budget(1)  # the device is the limit: none is set for the process
    with budget.stage("update"):
        bytearray(MIB)
    with pytest.raises(OutOfMemory), budget.stage("update"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 GiB")
    assert budget.peaks() == {"update": 64 * MIB} and len(begun) == 2


@pytest.mark.parametrize(("there", "device"), [(True, "cuda:0"), (False, "cpu")])
def test_a_rank_joins_on_the_gpu_that_it_is_shown(monkeypatch, there, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(actor_setup, "_between_hosts", lambda: None)
    monkeypatch.setattr(actor_setup, "join", lambda *arguments: arguments[4])
    assert actor_setup.join_mesh(Config.model_validate({"env": {"name": "tictactoe"}}), 0, None, None) == device


def test_a_rank_on_a_gpu_breaks_its_connections_by_ending_the_group(monkeypatch):
    ended = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.distributed_c10d, "_abort_process_group", lambda: ended.append(1))
    actor_setup.Actor().sever()
    assert ended == [1]


@gpu
def test_a_group_that_was_severed_can_be_joined_again():
    from earl.benchmarks.layouts import free_port
    from earl.parallel.layout import Layout

    for _ in range(2):
        with meshes.joined_mesh(0, Layout(), "127.0.0.1", free_port(), "cuda:0"):
            distributed.barrier()
            actor_setup.Actor().sever()
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


def test_more_parts_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    Gpu().check(None, SamplerConfig(tp=1))
    with pytest.raises(EarlError, match=r"sampler\.tp is 2, and this process sees 1 GPUs"):
        Gpu().check(None, SamplerConfig(tp=2))


@gpu
def test_more_parts_than_this_machine_has_gpus_are_refused():
    with pytest.raises(EarlError, match=r"lower sampler\.tp"):
        Gpu().check(None, SamplerConfig(tp=torch.cuda.device_count() + 1))


class Recorder:
    """An engine that notes what it is told."""

    def __init__(self):
        self.calls = []

    def collective_rpc(self, name, args=(), kwargs=None):
        self.calls.append((name, kwargs or {}))

    def sleep(self, level):
        self.calls.append(("sleep", {"level": level}))

    def wake_up(self):
        self.calls.append(("wake_up", {}))


class Workers(Recorder):
    """Two workers of vLLM that read files whole; the second one has this much memory for them."""

    def __init__(self, memory=1 << 20):
        super().__init__()
        self.files, self._memory = [], memory

    def collective_rpc(self, name, args=(), kwargs=None):
        super().collective_rpc(name)
        if name == "load_from":
            self.files.append(load_file(*args))
            self._memory -= sum(tensor.nbytes for tensor in self.files[-1].values())
            fault = "no memory" if self._memory < 0 else ""
            read_bytes = sum(tensor.nbytes for tensor in self.files[-1].values())
            return [SimpleNamespace(result=read_bytes, fault=""), SimpleNamespace(result=read_bytes, fault=fault)]
        return [None] * 2


def test_workers_take_16_bits_out_of_files_within_a_session_of_vllms(monkeypatch):
    monkeypatch.setattr(vllm_device, "CHUNK_BYTES", 140)
    engine, numbers = Workers(), torch.randn(8, 10)
    weights = {"a": numbers, "b": torch.ones(2, 10), "c": torch.ones(5, 10, dtype=torch.bfloat16)}
    assert Gpu().hand_over(engine, weights) == 2 * 2 * 150
    assert [name for name, _ in engine.calls] == [
        "start_weight_update",
        *["load_from"] * 2,
        "finish_weight_update",
    ]
    assert [{*file} for file in engine.files] == [{"b", "c"}, {"a"}]  # 40 + 100 bytes, then 160
    assert torch.equal(engine.files[1]["a"], numbers.bfloat16()) and engine.files[0]["c"].dtype == torch.bfloat16


def test_a_session_ends_although_its_weights_did_not_come():
    engine = Workers(memory=10)
    with pytest.raises(EarlError, match="a worker of vLLM failed: no memory"):
        Gpu().hand_over(engine, {"a": torch.ones(8)})
    assert [name for name, _ in engine.calls] == ["start_weight_update", "load_from", "finish_weight_update"]


@pytest.mark.slow
def test_vllms_own_classes_take_what_they_are_told():
    pytest.importorskip("vllm", reason="vLLM is an extra")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu_worker import Worker

    assert Worker.start_weight_update and Worker.finish_weight_update
    arguments = EngineArgs(model="none", **Gpu().arguments(SamplerConfig(memory_share=0.5), 64))
    assert arguments.enable_sleep_mode and arguments.gpu_memory_utilization == 0.5


def test_vllm_sleeps_at_the_level_that_keeps_weights_in_host_memory():
    engine = Recorder()
    Gpu().sleep(engine), Gpu().wake(engine)
    assert engine.calls == [("sleep", {"level": 1}), ("wake_up", {})]


def test_cases_of_memory_on_a_gpu_are_learners_of_one_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen = cases_of(None, None)
    assert 0 < len(chosen) < len(CASES)
    assert all(case.dp and case.layout.size == 1 and case.stage != "sample" for case in chosen)


@gpu
def test_the_benchmark_of_memory_measures_on_the_device():
    from earl.benchmarks.footprint import row_of

    row = row_of(cases_of("1 x 1, 16 bits", None)[0])
    assert row["predicted_bytes"] > 0 and row["measured_bytes"] > 0
