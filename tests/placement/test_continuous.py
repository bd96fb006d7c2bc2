"""Groups that are played while other things happen."""

import time

import pytest
import torch

from earl.engine.model import make
from earl.engine.samplers import make_sampler
from earl.evaluation import matches
from earl.placement.async_rollout import ContinuousFragment, Ticket
from earl.placement.fragment import RolloutFragment
from earl.rollout.tasks import draw

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
PATIENCE = 60.0


@pytest.fixture
def fragment(tiny):
    """Makes a fragment; the same recipe gives the same weights."""

    def of(kind=ContinuousFragment, **sections):
        ahead = {"placement": {"kind": "disaggregated", "max_staleness": 1}} if kind is ContinuousFragment else {}
        config = tiny(**sections, **ahead)
        policy = make(config.model, config.run.seed)
        return kind(config, policy.tokenizer, make_sampler(config, policy))

    return of


def start(fragment, step, numbers=range(4), limit=256):
    drawn = draw(fragment.config, step)
    fragment.start(step, {number: drawn.tasks[number] for number in numbers}, drawn.seed, limit)
    return [Ticket(step, number) for number in numbers]


def tokens(group):
    return [(t.task, t.seed, t.tokens.tolist(), t.stop) for t in group.trajectories]


def test_groups_are_those_of_the_lockstep_however_they_are_played(fragment):
    own, drawn = fragment(), draw(fragment().config, 4)
    expected = fragment(RolloutFragment).play(4, dict(enumerate(drawn.slots)), drawn.seed)
    tickets = start(own, 4)
    ended = own.ended(4, PATIENCE)
    assert sorted(ended) == tickets
    assert [tokens(ended[ticket]) for ticket in tickets] == [tokens(expected[number]) for number in range(4)]
    assert own.ended(4, PATIENCE) == {}  # each is told once


def test_what_is_asked_for_is_waited_for_and_no_more(fragment):
    own = fragment(env={"delay_seconds": 0.2})
    tickets = start(own, 4)
    later = start(own, 5)
    assert own.ended(3, PATIENCE) == {}  # nothing of step 3 is in play
    found = set()
    while not found >= {*tickets}:
        found |= own.ended(4, PATIENCE).keys()
    while not found >= {*later}:
        found |= own.ended(5, PATIENCE).keys()
    assert found == {*tickets, *later}


def test_episodes_go_on_under_new_weights(fragment):
    own = fragment(env={"delay_seconds": 0.1}, warm_start={"steps": 0}, agent={"retries": 8})
    tickets = start(own, 4)
    weights, version, found = own.sampler.within._model.state_dict(), 0, {}
    while len(found) < len(tickets):
        version += 1
        own.sampler.load(weights, version)
        found |= own.ended(4, 0.02)
    trajectories = [t for group in found.values() for t in group.trajectories]
    seen = [t.versions[t.sampled].tolist() for t in trajectories]
    assert all(versions == sorted(versions) for versions in seen)
    assert any(versions[0] < versions[-1] for versions in seen)


def test_matches_are_played_in_between(fragment):
    own = fragment(env={"delay_seconds": 0.05})
    start(own, 4)
    listed = matches(own.world, ["random"], False, 5)
    expected = fragment(RolloutFragment).evaluate(listed)
    assert own.evaluate(listed) == expected
    assert len(own.ended(4, PATIENCE)) == 4


def test_what_was_abandoned_does_not_come_back(fragment):
    own = fragment(env={"delay_seconds": 0.05})
    start(own, 4)
    own.abandon()
    assert own.ended(4, PATIENCE) == {}
    tickets = start(own, 4, numbers=[1])  # the same again
    assert [*own.ended(4, PATIENCE)] == tickets
    time.sleep(0.2)
    assert own.ended(9, 0) == {}


def test_a_fault_is_told_to_who_asks(fragment):
    own = fragment()
    own.sampler.within.generate = lambda prompts: 1 / 0
    start(own, 4)
    with pytest.raises(RuntimeError, match="division by zero"):
        own.ended(4, PATIENCE)
