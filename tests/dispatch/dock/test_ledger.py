"""Who gets what next: groups whole, once, oldest first, with every column that is needed."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from earl.dispatch.balance import excess
from earl.dispatch.columns import COLUMNS, columns
from earl.dispatch.dock.groups import NOBODY
from earl.dispatch.dock.handout import Consumer
from earl.dispatch.dock.ledger import Ledger
from earl.errors import EarlError

NAMES = ("tokens", "reference", "rewards")
SCORE = Consumer("score", columns(["tokens"]), np.arange(2).reshape(2, 1, 1))
UPDATE = Consumer("update", columns(NAMES), np.arange(4).reshape(2, 1, 2), in_order=True)
CAPACITY = 12


def ledger(capacity: int = CAPACITY, consumers=(SCORE, UPDATE)) -> Ledger:
    return Ledger(columns(NAMES), consumers, capacity)


def whole(dock: Ledger, size: int, length: int = 5, process: int = 0, names=NAMES) -> np.ndarray:
    """A group that is ready."""
    numbers = dock.open(size)
    dock.ready(numbers, np.full(size, length), process, names)
    return numbers


class Docking(RuleBasedStateMachine):
    """The ledger against the plainest of models: a dictionary of rows, and what each consumer was given."""

    def __init__(self):
        super().__init__()
        self.ledger = ledger()
        self.groups: dict[int, list[int]] = {}  # first row -> rows
        self.length: dict[int, int] = {}
        self.ready: dict[int, set[str]] = {}
        self.process: dict[tuple[int, str], int] = {}
        self.given: dict[tuple[str, int], str] = {}  # (consumer, group) -> taken or done
        self.maker: dict[int, int] = {}
        self.out: list = []
        self.all_opened: set[int] = set()
        self.given_up: set[int] = set()
        self.done: dict[str, list[int]] = {"score": [], "update": []}

    def needs(self, consumer: Consumer) -> set[str]:
        return {column.name for column in consumer.columns}

    def forget(self, group: int) -> None:
        for row in self.groups.pop(group):
            del self.length[row], self.ready[row]
        self.maker.pop(group, None)

    @precondition(lambda self: not self.ledger.closed)
    @rule(size=st.integers(1, 4))
    def open(self, size):
        numbers = self.ledger.open(size)
        if sum(map(len, self.groups.values())) + size > CAPACITY:
            assert numbers is None
            return
        self.groups[int(numbers[0])] = numbers.tolist()
        self.all_opened.add(int(numbers[0]))
        for row in numbers.tolist():
            self.length[row], self.ready[row] = 0, set()

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), process=st.integers(0, 5))
    def begin(self, data, process):
        group = data.draw(st.sampled_from([*self.groups]))
        if group in self.maker:
            with pytest.raises(EarlError, match=f"group {group} .* is made already"):
                self.ledger.begin(group, process)
            return
        self.ledger.begin(group, process)
        self.maker[group] = process

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), name=st.sampled_from(NAMES), process=st.integers(0, 5), length=st.integers(1, 9))
    def put(self, data, name, process, length):
        rows = data.draw(st.sampled_from([*self.groups.values()]))
        chosen = [row for row in data.draw(st.sets(st.sampled_from(rows), min_size=1)) if name not in self.ready[row]]
        lengths = [self.length[row] if self.ready[row] else length for row in chosen]
        self.ledger.ready(np.array(chosen, np.int64), np.array(lengths, np.int64), process, [name])
        for row, tokens in zip(chosen, lengths, strict=True):
            self.length[row] = tokens
            self.ready[row].add(name)
            self.process[row, name] = process

    @rule(consumer=st.sampled_from([SCORE, UPDATE]), wanted=st.integers(1, 3))
    def take(self, consumer, wanted):
        waiting = [group for group in sorted(self.groups) if (consumer.name, group) not in self.given]
        able = [all(self.needs(consumer) <= self.ready[row] for row in self.groups[group]) for group in waiting]
        enough = 1
        if consumer.in_order:
            enough = wanted if not self.ledger.closed else min(wanted, len(waiting))
            able = [own and False not in able[:number] for number, own in enumerate(able)]
        expected = [group for group, own in zip(waiting, able, strict=True) if own][:wanted]
        handout = self.ledger.take(consumer.name, wanted)
        if not expected or len(expected) < enough:
            assert handout is None
            assert self.ledger.finished(consumer.name) == (self.ledger.closed and not waiting)
            return
        assert handout.groups.tolist() == expected
        rows = [row for group in expected for row in self.groups[group]]
        assert handout.rows.tolist() == rows
        assert handout.lengths.tolist() == [self.length[row] for row in rows]
        places = [[self.process[row, column.name] for column in consumer.columns] for row in rows]
        assert handout.where.tolist() == places
        assert set(handout.parts.tolist()) <= {0, 1}
        self.given |= {(consumer.name, group): "taken" for group in expected}
        self.out.append(handout)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), arrived=st.booleans())
    def settle(self, data, arrived):
        handout = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        (self.ledger.done if arrived else self.ledger.back)(handout)
        name = handout.consumer.name
        for group in handout.groups.tolist():
            if not arrived:
                del self.given[name, group]
                continue
            self.done[name].append(group)
            self.given[name, group] = "done"
            if all(self.given.get((other, group)) == "done" for other in ("score", "update")):
                self.forget(group)
        with pytest.raises(EarlError, match="once for each hand-out"):
            self.ledger.done(handout)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def give_up(self, data):
        group = data.draw(st.sampled_from([*self.groups]))
        if "taken" in {self.given.get((name, group)) for name in ("score", "update")}:
            with pytest.raises(EarlError, match="is taken"):
                self.ledger.give_up(group)
            return
        self.ledger.give_up(group)
        self.forget(group)
        self.given_up.add(group)

    @rule(process=st.integers(0, 5))
    def lose(self, process):
        struck = [row for row in self.ready if any(self.process[row, name] == process for name in self.ready[row])]
        groups = [g for g, rows in self.groups.items() if set(rows) & set(struck) or self.maker.get(g) == process]
        assert self.ledger.lost(process).tolist() == sorted(groups)
        assert self.ledger.lost(process).tolist() == [], "each is named once"
        for row in struck:
            self.ready[row] = set()
        for group in groups:
            self.maker.pop(group, None)

    @rule()
    def close(self):
        if len(self.all_opened) > 8:
            self.ledger.close()

    @invariant()
    def nothing_is_lost_and_nothing_given_twice(self):
        held = sorted(row for rows in self.groups.values() for row in rows)
        assert self.ledger.free == CAPACITY - len(held)
        every = np.arange(max(self.all_opened, default=0) + 4)
        assert np.setdiff1d(every, self.ledger.gone(every)).tolist() == held
        for done in self.done.values():
            assert len(set(done)) == len(done)
        over = set(self.done["score"]) & set(self.done["update"])
        assert self.all_opened == over | self.given_up | set(self.groups)
        groups = np.array(sorted(self.groups), np.int64)
        assert self.ledger.makers(groups).tolist() == [self.maker.get(group, NOBODY) for group in groups.tolist()]


TestDocking = Docking.TestCase
TestDocking.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def test_a_group_waits_for_its_last_row_and_its_last_column() -> None:
    dock = ledger()
    first, second = dock.open(2), dock.open(2)
    dock.ready(second, np.array([3, 4]), 1, ["tokens"])
    dock.ready(first[:1], np.array([3]), 0, ["tokens"])
    assert dock.take("score", 1).rows.tolist() == second.tolist()
    assert dock.take("score", 1) is None, "half of the first group is there"
    dock.ready(first[1:], np.array([9]), 0, ["tokens"])
    assert dock.take("score", 1).rows.tolist() == first.tolist()
    assert dock.take("update", 1) is None, "it needs the reference too"


def test_a_reader_in_order_does_not_pass_by_the_first() -> None:
    dock = ledger()
    slow = dock.open(2)
    whole(dock, 2)
    assert [groups.tolist() for groups in dock.waiting("update")] == [[2], [0]]
    assert dock.take("update", 1) is None
    dock.ready(slow, np.array([1, 1]), 0, NAMES)
    assert dock.take("update", 3) is None, "it takes as many as it asks for"
    assert dock.take("update", 2).groups.tolist() == [0, 2]


def test_any_other_reader_takes_what_is_ready() -> None:
    dock = ledger()
    dock.open(2)
    whole(dock, 2)
    whole(dock, 2)
    assert dock.take("score", 3).groups.tolist() == [2, 4]


def test_what_a_lost_process_was_making_is_begun_again() -> None:
    dock = ledger()
    first, second, third = (int(dock.open(2)[0]) for _ in range(3))
    dock.begin(first, 0)
    dock.begin(second, 1)
    dock.begin(third, 0)
    dock.ready(np.array([third, third + 1]), np.array([3, 4]), 0, NAMES)
    assert dock.lost(0).tolist() == [first, third], "one that it made, and one that it was making"
    assert dock.makers(np.array([first, second, third])).tolist() == [NOBODY, 1, NOBODY]
    assert [groups.tolist() for groups in dock.waiting("update")] == [[], [first, second, third]]
    dock.begin(first, 1)
    assert dock.lost(1).tolist() == [first, second]


def test_room_comes_back_when_all_consumers_are_done() -> None:
    dock = ledger(capacity=4)
    rows = whole(dock, 4)
    assert dock.open(1) is None
    score = dock.take("score", 1)
    dock.done(score)
    assert dock.open(1) is None, "the update has not read it"
    dock.done(dock.take("update", 1))
    assert dock.gone(rows).tolist() == rows.tolist()
    assert dock.open(4).tolist() == [4, 5, 6, 7], "numbers are not used again"


def test_ranks_get_equal_work_and_rows_stay_where_that_costs_nothing() -> None:
    # 200 rows of 16 to 4,000 tokens, over four ranks: at most 5 % more than the mean. Rows of 1 token each stay.
    processes = np.arange(4).reshape(4, 1, 1)
    reader = Consumer("update", columns(["tokens"]), processes)
    dock = ledger(1000, [reader])
    lengths = np.random.default_rng(0).integers(16, 4000, 200)
    dock.ready(dock.open(200), lengths, 0, ["tokens"])
    handout = dock.take("update", 1)
    assert excess(handout.lengths.astype(float), handout.parts, 4) <= 0.05
    for process in (2, 0, 3, 1):
        dock.ready(dock.open(8), np.ones(8, np.int64), process, ["tokens"])
    assert dock.take("update", 4).parts.tolist() == [2] * 8 + [0] * 8 + [3] * 8 + [1] * 8


def test_what_a_reader_or_a_producer_may_not_say() -> None:
    dock = ledger()
    with pytest.raises(EarlError, match="unknown column 'token'; did you mean 'tokens'"):
        dock.ready(dock.open(1), np.array([1]), 0, ["token"])
    with pytest.raises(EarlError, match="unknown column 'values'"):
        ledger(4, [Consumer("value", columns(["values"]), SCORE.processes)])
    with pytest.raises(EarlError, match="unknown consumer 'updat'; did you mean 'update'"):
        dock.take("updat", 1)
    with pytest.raises(EarlError, match="a group of 13 rows does not go into a dock of 12"):
        dock.open(13)
    with pytest.raises(EarlError, match="rows 77 are not in the dock"):
        dock.ready(np.array([77]), np.array([1]), 0, ["tokens"])
    with pytest.raises(EarlError, match="group 77 is not in the dock"):
        dock.begin(77, 0)
    rows = dock.open(2)
    dock.ready(rows, np.array([3, 4]), 0, ["tokens"])
    with pytest.raises(EarlError, match="tokens of rows 1, 2 are ready already"):
        dock.ready(rows, np.array([3, 4]), 0, ["tokens"])
    with pytest.raises(EarlError, match="rows 2 have another length"):
        dock.ready(rows, np.array([3, 5]), 0, ["reference"])
    dock.close()
    with pytest.raises(EarlError, match="the dock is closed"):
        dock.open(1)


@pytest.mark.parametrize("size", [1, 16])
def test_a_hundred_thousand_rows_take_less_than_200_bytes_each(size: int) -> None:
    # 11 columns x 4 bytes + number 8 + length 8 = 60 bytes, and a group's 22; tables grow by doubling.
    consumers = [Consumer(name, tuple(COLUMNS.values()), SCORE.processes) for name in ("score", "update")]
    rows = 100_000
    tracemalloc.start()
    dock = Ledger(tuple(COLUMNS.values()), consumers, rows)
    for _ in range(rows // size):
        dock.open(size)
    every = np.arange(rows)
    for begin in range(0, rows, 1000):
        own = every[begin : begin + 1000]
        dock.ready(own, np.full(1000, 7), begin // 1000, [*COLUMNS])
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert dock.free == 0
    print(
        f"groups of {size}: {held / rows:.1f} bytes of a row, {peak / rows:.1f} at the most, {dock.nbytes / rows:.1f}"
    )
    assert peak < 200 * rows


def test_the_same_calls_give_the_same_order() -> None:
    def told(seed: int) -> list:
        random, dock, said = np.random.default_rng(seed), ledger(200), []
        for _ in range(40):
            whole(dock, int(random.integers(1, 5)), int(random.integers(1, 99)), int(random.integers(0, 4)))
            if (handout := dock.take("score", 3)) is not None:
                said.append((handout.rows.tolist(), handout.parts.tolist()))
        return said

    assert told(3) == told(3)
    order = [row for rows, _ in told(3) for row in rows]
    assert order == sorted(order)
