"""Weights between real processes, of a real model: what a sampler or another layout gets is the model, to the bit."""

import pytest
import torch

from earl.benchmarks.hosts import run
from earl.benchmarks.weights import CASES
from earl.benchmarks.weights import run as benchmark
from earl.config import ModelConfig
from earl.dispatch.weight_transfer import carry
from earl.dispatch.weights import Weight, plan_weights
from earl.engine.model import make, tensors_once
from earl.engine.sharding.tensor_parallel import split

pytestmark = pytest.mark.slow
MODEL = ModelConfig(hidden=32, layers=2, heads=4, head_dim=8, intermediate=48)
BUCKET = 4096


def tensors():
    """Of the model that a recipe starts from; every second one in 16 bits."""
    torch.set_num_threads(1)
    made = tensors_once(make(MODEL, seed=3).model)
    kinds = [torch.float32, torch.bfloat16]
    return {name: tensor.to(kinds[number % 2]) for number, (name, tensor) in enumerate(made.items())}


def plan_of(case):
    axes = split(make(MODEL, seed=3).model, 2, 0, None).axes
    weights = [
        Weight(name, tuple(tensor.shape), tensor.itemsize, axes.get(name), axes.get(name))
        for name, tensor in tensors().items()
    ]
    return plan_weights(weights, case.source, case.target, case.hosts, BUCKET)


def exact(seat, case, store):
    """What one process has afterwards: whether all of it is right, and what the learner had."""
    from tests.dispatch.transports.test_peers import joined

    plan, model = plan_of(case), tensors()
    ours = {w.name: case.source.box(w.shape, w.given, seat.process) for w in plan.weights}
    wanted = {w.name: case.target.box(w.shape, w.wanted, seat.process) for w in plan.weights}
    held = {name: model[name][box.slices].clone() for name, box in ours.items() if box is not None}
    room = {name: torch.empty_like(model[name][box.slices]) for name, box in wanted.items() if box is not None}
    carry(plan, seat.process, held, room, joined(seat, store, 60.0))
    return all(torch.equal(room[name], model[name][box.slices]) for name, box in wanted.items() if box) and all(
        torch.equal(held[name], model[name][box.slices]) for name, box in ours.items() if box
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_arrives_bit_for_bit(tmp_path, case):
    assert run(None, case.hosts, exact, case, tmp_path / "store") == [True] * len(case.hosts)
    moved = plan_of(case).volume()
    assert moved.received.tolist() == moved.least.tolist()


def test_what_the_benchmark_tells():
    result = benchmark(hidden=256, layers=2, bucket_mib=4, repeats=1)
    assert [row["case"] for row in result["rows"]] == [case.name for case in CASES]
    for row, case in zip(result["rows"], CASES, strict=True):
        assert row["ratio"] == 1.0
        assert row["stated_bytes"] <= result["bucket_bytes"]
        # What a process had resident beyond its boxes: a bucket, and what Python's own objects take, some 100 KB.
        assert row["extra_bytes"] <= result["bucket_bytes"] + (1 << 20)
        # One process each for all hosts but one: a sampler of two ranks shares a host, and gets norms once for both.
        assert (row["inside_bytes"] == 0) == (len({*case.hosts}) == len(case.hosts))
