"""Whatever is done to a ledger, it says what the plainest of models says."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from earl.dispatch.ledger import NOBODY, Consumer
from earl.errors import EarlError
from tests.dispatch.dock.docks import CAPACITY, NAMES, SCORE, UPDATE, ledger


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
