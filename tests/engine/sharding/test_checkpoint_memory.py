"""Four processes save and load a model that none of them may hold: each its part, and one file at a time."""

import json
import os
import zlib
from math import prod

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from earl.benchmarks.layouts import free_port
from earl.benchmarks.processes import run
from earl.config import LearnerConfig, ModelConfig
from earl.documents import fingerprint
from earl.engine.checkpoint_tensors import Stored
from earl.engine.heap import give_back
from earl.engine.learner import Learner
from earl.engine.model import meta_policy
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.engine.train_state import STATE
from earl.parallel.layout import Layout, whole
from earl.placement.ray.memory_budget import SPARE_BYTES, Budget

pytestmark = pytest.mark.slow

MODEL = ModelConfig(hidden=512, layers=12, heads=8, head_dim=64, intermediate=2048)
TINY = ModelConfig(hidden=32, layers=1, heads=4, head_dim=8, intermediate=64)
RANKS = 4


class Numbered:
    """Weights and moments of any size, of which any part can be read: a number follows from its tensor and its place
    there."""

    def __init__(self, model):
        self.weights = {name: tuple(own.shape) for name, own in meta_policy(model).model.named_parameters()}
        self.shapes = {**self.weights}
        for name, shape in self.weights.items():
            self.shapes |= {f"exp_avg/{name}": shape, f"exp_avg_sq/{name}": shape, f"step/{name}": ()}

    def read(self, name, wanted):
        places = torch.full((), zlib.crc32(name.encode()) % 9973, dtype=torch.int32)
        for axis, (start, size) in enumerate(zip(wanted.offset, wanted.shape, strict=True)):
            stride = prod(self.shapes[name][axis + 1 :])
            places = places[..., None] + stride * torch.arange(start, start + size, dtype=torch.int32)
        return places.remainder_(9973).float()


def learner_of(model, mesh, source):
    return Learner(meta_policy(model), LearnerConfig(), 1.0, Shards(mesh, source), False)


def within(seat, layout, port, work, most_bytes, folder):
    """A process with this limit: the bytes of its part, and the peak of its memory beyond what it began with."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    with joined_mesh(seat.process, layout, seat.address, port) as mesh:
        give_back()
        saved(TINY, mesh, folder / "tiny")  # loads the libraries' code
        budget = Budget(most_bytes)
        with budget.stage("work"):
            learner = work(MODEL, mesh, folder / "model")
            own = sum(part.numbers.nbytes for _, part in learner.state.carried())
        return own, budget.peaks()["work"]


def saved(model, mesh, folder):
    numbers = Numbered(model)
    learner = learner_of(model, mesh, numbers)
    learner.state.take(numbers)
    written = learner.snapshot()(folder)
    for name, known in written.items():
        with (folder / name).open("rb") as file:
            assert fingerprint(file) == known
    weights, state = f"model-{mesh.rank + 1:05}-of-{RANKS:05}.safetensors", f"rank-{mesh.rank:05}.safetensors"
    assert [*written] == [f"{STATE}/{state}", weights], "each rank hashes what it wrote"
    return learner


def loaded(model, mesh, folder):
    """Weights and moments of a checkpoint, each number looked at."""
    numbers, learner = Numbered(model), learner_of(model, mesh, Stored(folder))
    learner.restore(folder)
    for name, part in learner.state.carried():
        assert torch.equal(part.numbers, numbers.read(name, part.box)), name
    return learner


def test_no_process_holds_more_than_its_part_and_one_file(tmp_path):
    numbers = Numbered(MODEL)
    model_bytes = 4 * sum(map(prod, numbers.weights.values()))
    # Each has a quarter of the weights and of two moments, and writes a quarter of the weights.
    own_bytes, file_bytes = 3 * model_bytes // RANKS, model_bytes // RANKS
    most_bytes = int(1.3 * own_bytes + file_bytes)
    assert most_bytes < own_bytes + model_bytes, "one of them could gather the weights"
    for layout, work in ((Layout(4), saved), (Layout(2, 2), loaded), (Layout(1, 2, 2), loaded)):
        told = run(None, (0,) * RANKS, within, layout, free_port(), work, most_bytes + SPARE_BYTES, tmp_path)
        print(f"{work.__name__} under {layout}:", *(f"{peak / own:.2f}" for own, peak in told), "of its part")
        for own, peak in told:
            assert 0.99 * own_bytes < own < 1.01 * own_bytes
            assert peak <= most_bytes
    assert_a_model_in_even_files(tmp_path / "model", numbers, model_bytes)


def assert_a_model_in_even_files(folder, numbers, model_bytes):
    """What four ranks wrote is a Hugging Face folder."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == model_bytes
    assert {*index["weight_map"]} == {*numbers.weights}
    files = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in files] == [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
    for path in files:
        assert path.stat().st_size == pytest.approx(model_bytes / RANKS, rel=0.05)
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
        for name, tensor in load_file(path).items():
            assert index["weight_map"][name] == path.name
            assert torch.equal(tensor, numbers.read(name, whole(tensor.shape))), name
    assert len([*(folder / STATE).glob("rank-*.safetensors")]) == RANKS
