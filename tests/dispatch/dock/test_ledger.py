"""Who gets what next: groups whole, once, oldest first, with every column that is needed."""

import tracemalloc

import numpy as np
import pytest

from earl.dispatch.ledger import NOBODY, Consumer, Ledger
from earl.dispatch.rows import COLUMNS, columns, excess
from earl.errors import EarlError
from tests.dispatch.dock.docks import NAMES, SCORE, ledger, whole


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
