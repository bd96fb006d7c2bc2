"""A process's budget: what is in use counts, what was only reserved does not, and what is above it is refused."""

import mmap
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from earl.errors import OutOfMemory
from earl.placement.ray.memory_budget import SPARE_BYTES, Budget, aside, thin_threads

pytestmark = pytest.mark.slow

MIB = 1 << 20
BUDGET = 96 * MIB


def taken(mib):
    return torch.ones(mib * MIB // 4)


def alone(work, *arguments):
    """Run in a process of its own: what it says."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(as_actor, work, *arguments).result(timeout=120)


def as_actor(work, *arguments):
    thin_threads()
    torch.set_num_threads(1)
    return work(*arguments)


def stages(reserved_mib, *mibs):
    """A stage for each size: what is said of it, or the peak in MiB."""
    held = mmap.mmap(-1, max(1, reserved_mib) * MIB, flags=mmap.MAP_PRIVATE)  # never touched
    budget, said = Budget(BUDGET), []
    for mib in mibs:
        try:
            with budget.stage("update"):
                taken(mib)
            said.append(budget.peaks()["update"] / MIB)
        except OutOfMemory as error:
            said.append(str(error))
            assert budget.peaks()["update"] <= BUDGET
    held.close()
    return said


def growing(keep_mib, in_advance_mib):
    """What is reserved within the budget, and touched beside what is kept: how much of it before it is refused."""
    budget, held = Budget(BUDGET), []
    try:
        with budget.stage("update"):
            held.append(taken(keep_mib))
            while True:
                held.append(taken(in_advance_mib))
    except OutOfMemory:
        return sum(own.nbytes for own in held) / MIB, budget.peaks()["update"] / MIB


def beside(mib):
    with Budget(BUDGET).stage("update"), aside():
        return taken(mib).nbytes / MIB


def after_more_than_all_was_kept():
    """A stage that begins above the budget says so, and leaves nothing bound."""
    budget, kept, said = Budget(BUDGET), taken(200), []
    for mib in (1, 1):
        try:
            with budget.stage("update"):
                kept[:MIB] = taken(mib * 4)
        except OutOfMemory as error:
            said.append(str(error))
    return said, taken(300).nbytes / MIB


@pytest.mark.parametrize("reserved_mib", [0, 400])
def test_what_is_above_the_budget_is_refused_whatever_was_reserved_before(reserved_mib):
    small, large, again = alone(stages, reserved_mib, 64, 120, 64)
    assert 63 < small < 96
    assert "ran out of memory" in large
    assert 63 < again < 96


def test_memory_that_is_taken_little_by_little_ends_at_the_budget():
    # 96 MiB, less what others may begin threads with: 80 MiB.
    got, peak = alone(growing, 40, 2)
    least = (BUDGET - SPARE_BYTES) / MIB - 4
    assert least < got <= 96
    assert peak <= 96


def test_nothing_is_refused_aside():
    assert alone(beside, 200) == 200


def test_a_stage_that_begins_above_the_budget_is_refused_and_leaves_nothing_bound():
    said, afterwards = alone(after_more_than_all_was_kept)
    assert [line for line in said if "ran out of memory" in line] == said
    assert len(said) == 2
    assert afterwards == 300
