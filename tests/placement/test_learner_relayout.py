"""A learner changes its layout between two steps, also one that ran out of memory in the middle of its work."""

import numpy as np
import pytest
import ray

from earl.errors import OutOfMemory
from earl.placement.backend import on_cluster
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers
from earl.placement.ray.memory_budget import SPARE_BYTES, Budget, status_bytes
from earl.recipe import build

pytestmark = pytest.mark.usefixtures("shared_ray")

BASE = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0}},
    "model": {"hidden": 64, "layers": 2, "heads": 4, "head_dim": 16, "intermediate": 2048},
    "rollout": {"episodes": 32, "group_size": 4},
    "algorithm": {"name": "ppo", "kl": 0.01},
    "run": {"steps": 6, "processes": 1},
}
SPARE = 1 << 20
"""Bytes that a process is left with that is to run out of memory."""


def recipe(dp=2, tp=1, cp=1, **learner):
    place = {"kind": "colocated", "dp": dp, "tp": tp, "cp": cp, "samplers": 2, "heartbeat_seconds": 5.0}
    place |= {"memory_gib": 4.0}
    # The rate is so small that rounding, which no two layouts share, decides no token.
    return build({**BASE, "placement": place, "learner": {"minibatches": 2, "learning_rate": 1e-6, **learner}})


def learned(stages, step, groups=None):
    """A step's numbers."""
    groups = groups or stages.rollout(step)
    batch = stages.prepare(groups, stages.dispatch(groups, step))
    stats = stages.update(batch, step)
    stages.sync(step)
    return [stats[name] for name in ("loss", "kl_to_reference", "value_loss", "grad_norm")]


def starve(actor):
    """Leave a process hardly any memory: what it asks for next, the kernel refuses."""
    ray.get(actor.__ray_call__.remote(_starved))


def _starved(self):
    self._budget._most = status_bytes("RssAnon") - self._budget._resident + SPARE + SPARE_BYTES


@pytest.fixture
def stages():
    with on_cluster(recipe()) as place:
        opened = place.open(None)
        opened.sync(0)
        yield opened


@pytest.fixture(scope="module")
def left_alone():
    """The numbers of one process."""
    opened = embedded_pipeline(recipe().changed(placement={"kind": "embedded"}), Peers())
    opened.sync(0)
    return [learned(opened, step) for step in range(1, 6)]


@pytest.mark.slow
def test_losses_are_those_of_a_learner_that_keeps_its_layout(stages, left_alone):
    again = {"recompute": True, "micro_batch_tokens": 512}
    layouts = {2: recipe(1, 2), 3: recipe(1, 2, **again), 4: recipe(1, 1, 2), 5: recipe(2, 1, offload=True)}
    processes = [member.process for member in stages.learner._group.members]
    numbers = []
    for step in range(1, 6):
        if step in layouts:
            stages.learner.relayout(layouts[step])
        numbers.append(learned(stages, step))
    assert [member.process for member in stages.learner._group.members] == processes
    assert np.abs(np.array(numbers) - np.array(left_alone)).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(  # train/test_out_of_memory.py has the other
    ("stage", "during"),
    [
        ("preparation", "(values|preparation)"),
        pytest.param("update", "update", marks=pytest.mark.exhaustive),
    ],
)
def test_a_learner_that_has_no_memory_left_goes_on_under_another_layout(stages, left_alone, stage, during):
    first = learned(stages, 1)
    groups = stages.rollout(2)
    rows = stages.dispatch(groups, 2)
    batch = stages.prepare(groups, rows) if stage == "update" else None
    starve(stages.learner._group.members[1].actor)
    with pytest.raises(OutOfMemory, match=f"learner rank 1 ran out of memory during {during}") as caught:
        stages.update(batch, 2) if batch else stages.prepare(groups, rows)
    assert not caught.value.stuck
    for member in stages.learner._group.members:
        ray.get(member.actor.__ray_call__.remote(lambda self: setattr(self._budget, "_most", 4 << 30)))
    stages.learner.relayout(recipe(1, 2), caught.value)
    numbers = [first, learned(stages, 2, groups), learned(stages, 3)]
    assert np.abs(np.array(numbers) - np.array(left_alone[:3])).max() < 1e-4


@pytest.mark.slow
def test_a_process_may_take_so_much_and_no_more():
    budget = Budget(64 << 20)
    with budget.stage("small"):
        np.ones(32 << 17)  # 8 bytes each: 32 MiB
    with pytest.raises(OutOfMemory), budget.stage("large"):
        np.ones(256 << 17)  # 256 MiB: more than the budget and what may be reserved
    with budget.stage("after"):
        np.ones(32 << 17)
    peaks = budget.peaks()
    assert 31 << 20 <= peaks["small"] < 40 << 20  # the kernel counts pages in batches
    assert peaks["large"] < 64 << 20
    assert budget.peaks() == {}
