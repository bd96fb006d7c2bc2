"""Several processes on several devices: tensor, context and data parallelism, and the exchange of rows."""

import os

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore

from earl.algorithms.registry import algorithm
from earl.benchmarks.layouts import batch, free_port
from earl.benchmarks.processes import run
from earl.dispatch.plan import plan
from earl.dispatch.rows import columns, spread
from earl.dispatch.transports.base import execute
from earl.dispatch.transports.peers import join
from earl.engine.learner import Update
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.parallel.layout import Layout
from tests.dispatch.simulated import filled
from tests.gpu.small import learner_of

PLACES = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu(2))]
ON_CPU = pytest.param("cpu", marks=[pytest.mark.slow, pytest.mark.exhaustive])  # engine/test_sharded.py has them too


def losses(learner):
    update = Update(1e-3, entropy=0.01, minibatches=1, epochs=2, seed=0)
    return [learner.update(batch([40, 33, 17, 26], 4), algorithm("grpo"), update)["loss"] for _ in range(2)]


def trained(seat, layout, port, kind, settings):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    device = f"cuda:{seat.process}" if kind == "cuda" else "cpu"
    with joined_mesh(seat.process, layout, seat.address, port, device) as mesh:
        return losses(learner_of(Shards(mesh), **settings))


@pytest.mark.parametrize("kind", [ON_CPU, PLACES[1]])
@pytest.mark.parametrize("layout", [Layout(2), Layout(1, 2), Layout(1, 1, 2)], ids=["dp", "tp", "cp"])
@pytest.mark.parametrize(("settings", "tolerance"), [({}, 1e-3), ({"dtype": "bfloat16"}, 0.05)], ids=["32", "16"])
def test_two_processes_have_the_losses_of_one(plain, layout, kind, settings, tolerance):
    both = run(None, (0, 0), trained, layout, free_port(), kind, settings)
    assert both[0] == pytest.approx(both[1], abs=1e-6)
    assert both[0] == pytest.approx(losses(plain()), abs=tolerance, rel=tolerance)


def transfer(processes):
    source, target = (spread(Layout(processes), range(processes), parts) for parts in ([0, 1, 0, 1], [1, 0, 1, 1]))
    lengths = np.array([70_000, 5, 0, 123])
    return plan(lengths, columns(["tokens", "mask"]), source, target, np.arange(processes))


def exchanged(seat, store, kind):
    """Two transfers, which come out right."""
    device = torch.device("cuda", seat.process) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    transport = join(FileStore(str(store), 2), seat.process, np.arange(2), seat.address, 60.0, device)
    wanted = filled(transfer(2), transfer(2).target, seat.process)
    for _ in range(2):
        held = filled(transfer(2), transfer(2).source, seat.process)
        came = execute(transfer(2), seat.process, held, transport, checksums=True)
        assert all(came.columns[name].tobytes() == wanted.columns[name].tobytes() for name in came.columns)
    return type(transport).__name__


@pytest.mark.parametrize("kind", PLACES)
def test_rows_arrive_whole_at_another_process(tmp_path, kind):
    name = "DeviceTransport" if kind == "cuda" else "PeerTransport"
    assert run(None, (0, 1), exchanged, tmp_path / "store", kind) == [name] * 2


def test_a_process_alone_exchanges_with_itself(tmp_path, device):
    transport = join(FileStore(str(tmp_path / "store"), 1), 0, np.zeros(1, np.int64), "127.0.0.1", 60.0, device)
    assert transport.exchange({}, np.zeros((1, 1), np.int64)) == {}
    transport.close()
