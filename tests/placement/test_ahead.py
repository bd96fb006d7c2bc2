from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from earl.placement.async_rollout import Ahead, Ticket
from earl.trajectory import Author, GroupOf, Outcome, StopReason, Task, TrajectorySummary

LIMIT = 120
WORKERS = 2


def played(version):
    """A group of which these weights sampled all, in episodes of 3 and of 5 tokens."""
    return GroupOf(tuple(_outline(version, tokens) for tokens in (3, 5)))


def _outline(version, tokens):
    ended = (StopReason.FINISHED, Outcome.DRAW, 0, ())
    counts = (tokens, tokens, version * tokens, version)
    return TrajectorySummary(Task("tictactoe", 7), 0, (), *ended, *counts, {}, np.zeros((1, len(Author)), np.int64))


def version_of(group):
    return group.trajectories[0].oldest


@dataclass(frozen=True)
class Shape:
    first: int
    last: int
    prompts: int
    max_staleness: int

    def schedule(self) -> Ahead:
        return Ahead(self.first, self.last, self.prompts, self.max_staleness)


shapes = st.builds(
    lambda first, steps, prompts, staleness: Shape(first, first + steps - 1, prompts, staleness),
    first=st.integers(1, 4),
    steps=st.integers(1, 8),
    prompts=st.integers(1, 4),
    staleness=st.integers(0, 3),
)
durations = st.lists(st.floats(0, 10), min_size=1, max_size=40)


@dataclass
class World:
    """A clock, groups that take their time, and a learner that takes its own. What a group leaves is its version."""

    shape: Shape
    seconds: list[float]
    now: float = 0.0
    version: int = 0
    ends: list[tuple[float, Ticket, int]] = field(default_factory=list)
    versions: dict[Ticket, int] = field(default_factory=dict)
    learned: list[tuple[int, list[Ticket], list[int]]] = field(default_factory=list)
    most: int = 0

    def duration(self, ticket: Ticket) -> float:
        return self.seconds[(ticket.step * 7 + ticket.number) % len(self.seconds)]

    def start(self, ahead: Ahead, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ahead.begin(ticket, self.worker(ticket))
            heappush(self.ends, (self.now + self.duration(ticket), ticket, self.version))

    def worker(self, ticket: Ticket) -> int:
        return ticket.number % WORKERS

    def end(self, ahead: Ahead) -> None:
        """The next group comes to its end."""
        assert self.ends, "the learner waits for a group that nobody plays"
        self.now, ticket, self.versions[ticket] = heappop(self.ends)
        ahead.end(ticket, self.worker(ticket), played(self.versions[ticket]))

    def lose(self, ahead: Ahead, worker: int) -> list[Ticket]:
        """A worker is replaced, and what it played or had starts again, under the weights that are there now."""
        lost = ahead.lost(worker)
        self.ends = [end for end in self.ends if end[1] not in lost]
        heapify(self.ends)
        self.start(ahead, lost)
        return lost

    def run(self, ahead: Ahead) -> Iterator[int]:
        """Play all steps; yields each before it is taken."""
        self.start(ahead, ahead.advance(self.version, LIMIT))
        for step in range(self.version + 1, self.shape.last + 1):
            if step >= self.shape.first:
                while any(ticket.step == step for ticket in ahead.playing):
                    self.end(ahead)
                yield step
                while (groups := ahead.take(step)) is None:
                    self.end(ahead)
                self.learned.append((step, [*ahead.taken], [version_of(group) for group in groups]))
            self.now += self.seconds[step % len(self.seconds)]  # the update; groups go on under the old weights
            self.version = step
            self.start(ahead, ahead.advance(step, LIMIT))
            self.most = max(self.most, len(self.ends) + len(ahead.ended))


def tickets_of(shape, step):
    return [Ticket(step, number) for number in range(shape.prompts)]


def every(shape):
    return [(step, tickets_of(shape, step)) for step in range(shape.first, shape.last + 1)]


@given(shapes, durations)
def test_staleness_never_passes_its_bound_and_every_group_is_learned_once(shape, seconds):
    world = World(shape, seconds)
    list(world.run(shape.schedule()))
    assert not world.ends, "a group was played for nothing"
    assert [(step, tickets) for step, tickets, _ in world.learned] == every(shape)
    for step, _, versions in world.learned:
        assert all(0 <= step - 1 - version <= shape.max_staleness for version in versions)
        # As early as the bound allows, so that a slow group has all the time there is.
        assert versions == [max(shape.first - 1, step - 1 - shape.max_staleness)] * shape.prompts
    assert world.most <= (shape.max_staleness + 1) * shape.prompts


@given(shapes, durations)
def test_without_staleness_rollout_and_learner_take_turns(shape, seconds):
    shape = Shape(shape.first, shape.last, shape.prompts, 0)
    world, ahead = World(shape, seconds), shape.schedule()
    for step in world.run(ahead):
        assert not world.ends, "groups of a later step are in play while this one is learned"
        assert {ticket.step for ticket in ahead.ended} == {step}
    assert all(version == step - 1 for step, _, versions in world.learned for version in versions)


@given(shapes, durations, st.data())
def test_a_lost_worker_costs_no_group_and_none_is_learned_twice(shape, seconds, data):
    world, ahead = World(shape, seconds), shape.schedule()
    for _ in world.run(ahead):
        worker = data.draw(st.integers(0, WORKERS))  # the last of these plays nothing
        had = sorted(ticket for ticket in {**ahead.playing, **ahead.ended} if world.worker(ticket) == worker)
        assert world.lose(ahead, worker) == had
        assert {*had} <= ahead.playing.keys()
    assert not world.ends
    assert [(step, tickets) for step, tickets, _ in world.learned] == every(shape)
    for step, _, versions in world.learned:
        assert all(0 <= step - 1 - version <= shape.max_staleness for version in versions)


@given(shapes, durations, st.data())
def test_a_schedule_restored_at_any_step_loses_no_group_and_learns_none_twice(shape, seconds, data):
    cut = data.draw(st.integers(shape.first - 1, shape.last))
    world, ahead = World(shape, seconds), shape.schedule()
    for step in world.run(ahead):
        if step == cut + 1:
            break
    # The checkpoint of step `cut` was written when some groups of later steps had ended.
    kept = {ticket: world.versions[ticket] for ticket in ahead.ended if ticket.number % 2 == 0}
    restored = shape.schedule()
    restored.restore(ahead.limits if cut < shape.last else {})
    for ticket, version in kept.items():
        restored.begin(ticket, 1)
        restored.end(ticket, 1, played(version))
    again = World(shape, seconds, version=cut)
    list(again.run(restored))
    before = [step for step, _, _ in world.learned if step <= cut]
    assert before + [step for step, _, _ in again.learned] == [*range(shape.first, shape.last + 1)]
    assert not again.versions.keys() & kept.keys(), "what was kept is not played again"
    for step, tickets, versions in again.learned:
        assert tickets == tickets_of(shape, step)
        assert all(0 <= step - 1 - version <= shape.max_staleness for version in versions)


def test_a_group_that_starts_again_has_the_limit_of_its_step():
    ahead = Shape(1, 5, 2, 1).schedule()
    assert len(ahead.advance(0, 72)) == 4  # steps 1 and 2
    restored = Shape(1, 5, 2, 1).schedule()
    restored.restore(ahead.limits)
    restored.begin(Ticket(1, 0), 0)
    restored.end(Ticket(1, 0), 0, played(0))
    assert restored.advance(0, 120) == [Ticket(1, 1), Ticket(2, 0), Ticket(2, 1)]
    assert restored.limits[2] == 72


def test_what_was_played_further_ahead_than_there_is_room_for_is_forgotten():
    ahead = Shape(1, 9, 2, 3).schedule()
    assert len(ahead.advance(4, 72)) == 8  # steps 5 to 8
    restored = Shape(1, 9, 2, 1).schedule()  # goes on with another bound
    restored.restore(ahead.limits)
    assert [*restored.playing] == [Ticket(5, 0), Ticket(5, 1), Ticket(6, 0), Ticket(6, 1)]
    assert restored.advance(4, 120) == [*restored.playing]
    assert restored.limits == {5: 72, 6: 72}


def test_groups_that_are_being_learned_from_are_lost_too():
    ahead = Shape(1, 5, 2, 1).schedule()
    for ticket in ahead.advance(0, LIMIT):
        ahead.begin(ticket, ticket.number)
    for number in range(2):
        ahead.end(Ticket(1, number), number, played(0))
    assert len(ahead.take(1)) == 2
    assert ahead.taken == {Ticket(1, 0): 0, Ticket(1, 1): 1}
    assert ahead.lost(1) == [Ticket(1, 1), Ticket(2, 1)]
    assert ahead.lost(1) == []
    assert ahead.advance(1, LIMIT) == [Ticket(2, 1), Ticket(3, 0), Ticket(3, 1)]


def test_older_weights_that_are_loaded_at_the_end_start_nothing():
    ahead = Shape(1, 2, 1, 1).schedule()
    for ticket in ahead.advance(0, LIMIT):
        ahead.begin(ticket, 0)
        ahead.end(ticket, 0, played(0))
    for step in (1, 2):
        ahead.take(step)
        ahead.advance(step, LIMIT)
    assert ahead.advance(1, LIMIT) == []  # the best weights were those of step 1
    resumed = Shape(1, 2, 1, 1).schedule()  # as all steps are done, and these weights are still to be measured
    assert resumed.advance(2, LIMIT) == []
    assert resumed.advance(1, LIMIT) == []
