"""Whose fault it is when a member does not answer: its own, or that of one that it asked."""

import time

import pytest

from earl.placement.peers import WorkerLost
from earl.placement.ray.actor_group import CallResults


class Member:
    def ask(self, other):
        import ray

        return ray.get(other.give.remote())

    def give(self):
        return 3


def taken(reference):
    answers = CallResults()
    answers.take(reference, 1, "rollout worker 1")
    return answers.results, answers.lost


@pytest.mark.slow
def test_who_asked_one_that_is_dead_is_not_dead_itself(ray):
    asks, gives = (ray.remote(Member).options(num_cpus=0).remote() for _ in range(2))
    assert taken(asks.ask.remote(gives)) == ({1: 3}, {})
    ray.kill(gives)
    with pytest.raises(WorkerLost, match="what one process held for another is gone with it"):
        for _ in range(100):  # a killed process may answer once more
            taken(asks.ask.remote(gives))
            time.sleep(0.1)
    assert taken(gives.give.remote()) == ({}, {1: "has died"})
