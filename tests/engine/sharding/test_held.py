"""The boxes that sharded ranks hold of the weights make up the weights that they gather."""

import os
from itertools import product

import pytest
import torch

from earl.benchmarks.layouts import VARIANTS, _learner, free_port, trained
from earl.benchmarks.processes import run
from earl.parallel.layout import Layout
from tests.sampling import sampled

pytestmark = pytest.mark.slow
HELD = [*product([Layout(2, 2), Layout(4), Layout(1, 2, 2)], ["tied", "lora"])]


def ours(seat, variant, layout, port):
    """What one rank holds after an update, and what the first one gathers."""
    from earl.engine.sharding.mesh import joined_mesh
    from earl.engine.sharding.shards import Shards

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    with joined_mesh(seat.process, layout, seat.address, port) as mesh:
        learner = _learner(VARIANTS[variant], Shards(mesh))
        trained(learner, range(1))
        held, whole = learner.state.held(), learner.weights()
        parts = {name: (part.numbers.numpy().copy(), part.box, part.shape) for name, part in held.parts.items()}
        return parts, {name: tensor.numpy().copy() for name, tensor in whole.items()}


@pytest.mark.parametrize(("layout", "variant"), sampled(HELD, always=[HELD[0], HELD[3], HELD[5]]), ids=str)
def test_boxes_make_up_the_weights(layout, variant):
    told = run(None, (0,) * layout.size, ours, variant, layout, free_port())
    _, whole = told[0]
    covered = {name: torch.zeros(array.shape, dtype=torch.bool) for name, array in whole.items()}
    for parts, _ in told:
        for name, (numbers, box, shape) in parts.items():
            assert shape == whole[name].shape
            assert (numbers == whole[name][box.slices]).all()
            covered[name][box.slices] = True
    once = told[0][0].keys()
    assert whole.keys() - once == ({"lm_head.weight"} if variant == "tied" else set())
    assert all(covered[name].all() for name in once)


@pytest.mark.parametrize("layout", sampled([Layout(2, ep=2), Layout(4, 2, ep=4, replicas=2)], every=2), ids=str)
def test_boxes_of_experts_make_up_all_of_them(layout):
    test_boxes_make_up_the_weights(layout, "experts")
