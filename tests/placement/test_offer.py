"""What learner ranks serve of their weights, and what samplers make of it."""

import time
from itertools import product

import pytest
import torch

from earl.config import LearnerConfig, ModelConfig
from earl.engine.checkpoint_tensors import TensorPart
from earl.engine.learner import Learner
from earl.engine.local import LocalSampler, split_axes
from earl.engine.model import make, tensors_once
from earl.engine.ranks import Ranks
from earl.engine.sampler import Probe, StaleWeights
from earl.engine.sharding.tensor_parallel import split
from earl.engine.train_state import HeldTensors
from earl.parallel.layout import Layout
from earl.placement.peers import Peers
from earl.placement.ray.learner import WeightServer
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.weight_sync import BucketBarrier, BucketStore, WeightReader, WeightSource, manifest_of
from tests.sampling import sampled

MODEL = ModelConfig(hidden=32, layers=2, heads=4, head_dim=8, intermediate=48)
BUCKET = 8192
SERVED = [*product([Layout(4), Layout(1, 2)], [torch.float32, torch.bfloat16])]


def held(model, layout, rank):
    """What a rank holds, from the definition of a layout."""
    axes = split(make(MODEL, seed=1).model, 2, 0, None).axes if layout.tp > 1 else {}
    whole = tensors_once(model)
    boxes = {name: layout.box(tensor.shape, axes.get(name), rank) for name, tensor in whole.items()}
    parts = {name: TensorPart(whole[name][box.slices], box, tuple(whole[name].shape)) for name, box in boxes.items()}
    return HeldTensors(parts, {name: axes.get(name) for name in parts}, layout)


class Rank(WeightServer):
    """A learner rank without a learner."""

    def serve(self, layout, rank, tp=1, dtype=torch.float32):
        own = held(make(MODEL, seed=3).model, layout, rank)
        split = split_axes(make(MODEL, seed=1).model.config) if tp > 1 else {}
        self._budget, manifest = Budget(None), manifest_of(own, BUCKET, dtype, split, tp)
        self._buckets, self._barrier = BucketStore(lambda: own, rank, manifest, readers=1), BucketBarrier(1)
        return manifest


def source(ray, layout, *asked):
    kind = ray.remote(concurrency_groups={"health": 1})(Rank).options(num_cpus=0)
    ranks = tuple(kind.remote() for _ in range(layout.size))
    manifests = [ray.get(actor.serve.remote(layout, rank, *asked)) for rank, actor in enumerate(ranks)]
    assert all(manifest == manifests[0] for manifest in manifests)
    return WeightSource(manifests[0], ranks)


@pytest.mark.parametrize("layout", [Layout(), Layout(4), Layout(2, 2)], ids=str)
def test_ranks_share_what_there_is_to_give(layout):
    model = make(MODEL, seed=3).model
    total = sum(tensor.nbytes for tensor in tensors_once(model).values())
    given = manifest_of(held(model, layout, 0), BUCKET).plan.sent_bytes()
    assert len(given) == layout.size
    assert sum(given) == total, "every number once, whoever has it"
    assert max(given) <= total / layout.size + 2048, "norms lie on several ranks alike, and one of them gives them"


@pytest.mark.slow
def test_a_sampler_takes_what_the_ranks_serve(ray):
    policy, other = make(MODEL, seed=3), make(MODEL, seed=4)
    served = source(ray, Layout(2, 2))
    taken = WeightReader(served)
    assert [*taken] == [*tensors_once(policy.model)]
    assert all(torch.equal(taken[name], tensor) for name, tensor in tensors_once(policy.model).items())
    three = Layout(1, 3)  # over which nothing is cut where the ranks have cut it
    for name, tensor in tensors_once(policy.model).items():
        for axis in range(tensor.dim()):
            boxes = [three.box(tensor.shape, axis, rank) for rank in range(three.size)]
            assert all(torch.equal(taken.part(name, box), tensor[box.slices]) for box in boxes)
    sampler = LocalSampler(other)
    sampler.load(taken, 1, Probe.of(policy.model))
    with pytest.raises(StaleWeights):
        sampler.load(taken, 2, Probe.of(other.model))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "dtype"), sampled(SERVED, always=[SERVED[0], SERVED[3]]), ids=str)
def test_a_process_of_a_split_sampler_is_sent_what_it_needs_in_the_samplers_dtype(ray, layout, dtype):
    # 1.02 times its own numbers in the sampler's dtype at most; nothing is sent but these numbers.
    served, model = source(ray, layout, 2, dtype), make(MODEL, seed=3).model
    axes, two = split_axes(model.config), Layout(1, 2)
    for process in range(2):
        reader, needed = WeightReader(served), 0
        for name, tensor in tensors_once(model).items():
            box = two.box(tensor.shape, axes.get(name), process)
            assert reader.part(name, box).equal(tensor[box.slices].to(dtype)), name
            needed += box.numbers * dtype.itemsize
        assert needed <= reader.received_bytes <= 1.02 * needed
        assert needed < 0.55 * dtype.itemsize * sum(tensor.numel() for tensor in tensors_once(model).values())


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_learner_alone_holds_all_of_its_weights_with_adapters_merged(lora_rank):
    settings = LearnerConfig(lora_rank=lora_rank)
    learner = Learner(make(MODEL, seed=3), settings, 1.0, Ranks(Peers()), False)
    with torch.no_grad():
        for name, parameter in learner.scorer.model.named_parameters():
            if "lora_" in name:
                parameter.fill_(0.1)
    weights, own = learner.weights(), learner.state.held()
    once = [*tensors_once(make(MODEL, seed=3).model)]
    assert [*own.parts] == once
    assert all(torch.equal(own.parts[name].numbers, weights[name]) for name in once)
    assert own.layout == Layout()


class Sampler:
    """Loads, and says how much it was given."""

    def load(self, served):
        return len([*WeightReader(served).values()])


@pytest.mark.slow
def test_weights_of_a_rank_that_has_ended_are_lost_and_said_to_be(ray):
    from ray.exceptions import RayActorError, RayTaskError

    served, sampler = source(ray, Layout()), ray.remote(Sampler).options(num_cpus=0).remote()
    assert ray.get(sampler.load.remote(served)) == len(served.manifest.weights)
    ray.kill(served.ranks[0])
    with pytest.raises(RayTaskError) as lost:
        for _ in range(600):  # until Ray has noticed
            ray.get(sampler.load.remote(served))
            time.sleep(0.1)
    assert isinstance(lost.value.cause, RayActorError)  # which `ActorGroup.ask` takes for what it is
