from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from earl.placement.ahead import Ahead, Ticket

LIMIT = 120


@dataclass(frozen=True)
class Shape:
    first: int
    last: int
    prompts: int
    max_staleness: int

    def schedule(self) -> Ahead[int]:
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
    learned: list[tuple[int, list[Ticket], list[int]]] = field(default_factory=list)
    most: int = 0

    def duration(self, ticket: Ticket) -> float:
        return self.seconds[(ticket.step * 7 + ticket.number) % len(self.seconds)]

    def start(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            heappush(self.ends, (self.now + self.duration(ticket), ticket, self.version))

    def run(self, ahead: Ahead[int], until: int | None = None) -> Iterator[int]:
        """Play all steps; yields each before it is taken."""
        self.start(ahead.advance(self.version, LIMIT))
        for step in range(self.version + 1, self.shape.last + 1):
            if step >= self.shape.first:
                while ahead.playing(step):
                    assert self.ends, "the learner waits for a group that nobody plays"
                    self.now, ticket, version = heappop(self.ends)
                    ahead.end(ticket, version)
                yield step
                tickets = [Ticket(step, number) for number in range(self.shape.prompts)]
                self.learned.append((step, tickets, ahead.take(step)))
            self.now += self.seconds[step % len(self.seconds)]  # the update; groups go on under the old weights
            self.version = step
            self.start(ahead.advance(step, LIMIT))
            self.most = max(self.most, len(self.ends) + len(ahead.ended))


@given(shapes, durations)
def test_staleness_never_passes_its_bound_and_every_group_is_learned_once(shape, seconds):
    world = World(shape, seconds)
    list(world.run(shape.schedule()))
    assert not world.ends, "a group was played for nothing"
    steps = range(shape.first, shape.last + 1)
    assert [step for step, _, _ in world.learned] == [*steps]
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
def test_a_schedule_restored_at_any_step_loses_no_group_and_learns_none_twice(shape, seconds, data):
    cut = data.draw(st.integers(shape.first - 1, shape.last))
    world, ahead = World(shape, seconds), shape.schedule()
    for step in world.run(ahead):
        if step == cut + 1:
            break
    # The checkpoint of step `cut` was written when some groups of later steps had ended.
    kept = {ticket: version for ticket, version in ahead.ended.items() if ticket.number % 2 == 0}
    restored = shape.schedule()
    restored.restore(ahead.limits if cut < shape.last else {}, kept)
    again = World(shape, seconds, version=cut)
    list(again.run(restored))
    before = [step for step, _, _ in world.learned if step <= cut]
    assert before + [step for step, _, _ in again.learned] == [*range(shape.first, shape.last + 1)]
    for step, _, versions in again.learned:
        assert all(0 <= step - 1 - version <= shape.max_staleness for version in versions)


def test_a_group_that_starts_again_has_the_limit_of_its_step():
    ahead = Shape(1, 5, 2, 1).schedule()
    assert len(ahead.advance(0, 72)) == 4  # steps 1 and 2
    restored = Shape(1, 5, 2, 1).schedule()
    restored.restore(ahead.limits, {Ticket(1, 0): 0})
    assert restored.advance(0, 120) == [Ticket(1, 1), Ticket(2, 0), Ticket(2, 1)]
    assert restored.limit_of(2) == 72


def test_older_weights_that_are_loaded_at_the_end_start_nothing():
    ahead = Shape(1, 2, 1, 1).schedule()
    for ticket in ahead.advance(0, LIMIT):
        ahead.end(ticket, 0)
    for step in (1, 2):
        ahead.take(step)
        ahead.advance(step, LIMIT)
    assert ahead.advance(1, LIMIT) == []  # the best weights were those of step 1
