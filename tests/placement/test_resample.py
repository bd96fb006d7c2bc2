"""Groups that teach nothing: others are played in their place, up to a number of rounds, wherever they are played."""

import pytest

from earl.placement.pipeline import share
from earl.rollout.tasks import draw

STEP, ROUNDS, SLOTS = 4, 3, 8
# Against random play groups of two differ often, and are often alike.
RECIPE = {
    "rollout": {"episodes": 2 * SLOTS, "group_size": 2, "resample": ROUNDS},
    "algorithm": {"name": "dapo"},
    "env": {"opponents": {"random": 1.0}},
}


@pytest.fixture(scope="module")
def played(tiny, legal):
    """Plays the slots of a share of the workers."""
    config = tiny(**RECIPE)

    def play(rank=0, size=1, resample=ROUNDS):
        own = config.changed(rollout={"resample": resample})
        drawn = draw(own, STEP)
        return legal(own).play(STEP, share(drawn.slots, rank, size), drawn.seed)

    return play


def flat(group):
    return len({one.reward for one in group.trajectories}) == 1


def told(groups):
    return {
        number: [(t.task, t.seed, t.tokens.tolist()) for t in group.trajectories] for number, group in groups.items()
    }


def test_a_slot_is_played_again_until_it_teaches_something(played):
    groups = played()
    again = 0
    for slot in range(SLOTS):
        rounds = [number for number in range(slot, SLOTS * (ROUNDS + 1), SLOTS) if number in groups]
        assert rounds == [*range(slot, slot + SLOTS * len(rounds), SLOTS)]  # none is left out
        assert all(flat(groups[number]) for number in rounds[:-1])
        assert len(rounds) == ROUNDS + 1 or not flat(groups[rounds[-1]])
        again += len(rounds) - 1
    assert len(groups) == SLOTS + again
    informative = sum(not flat(group) for group in groups.values())
    assert 2 <= again < ROUNDS * SLOTS and informative > sum(not flat(groups[slot]) for slot in range(SLOTS))


def test_the_first_round_is_that_of_a_run_without(played):
    first = told(played(resample=0))
    assert [*first] == [*range(SLOTS)]
    assert first.items() <= told(played()).items()


def test_it_does_not_matter_which_worker_plays_a_slot(played):
    apart = [told(played(rank, 3)) for rank in range(3)]
    assert {number: group for own in apart for number, group in own.items()} == told(played())
    assert not apart[0].keys() & apart[1].keys()


def test_other_rounds_have_other_seeds_and_are_not_in_the_order_of_opponents(tiny):
    config = tiny(env={"opponents": {"random": 1, "perfect": 1}}, rollout={"episodes": 80, "group_size": 2})
    drawn = draw(config.changed(rollout={"resample": 2}), STEP)
    assert len(drawn.others) == 2 * len(drawn.tasks) == 80
    seeds = [task.seed for task in (*drawn.tasks, *drawn.others)]
    assert len({*seeds}) == len(seeds)
    met = [{task.opponent for task in slot} for slot in drawn.slots]
    assert {"random", "perfect"} in met
    for part in (drawn.others[:40], drawn.others[40:]):
        assert [task.opponent for task in part].count("random") == 20
