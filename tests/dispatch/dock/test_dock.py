"""Producers and consumers at the same time: threads, real stores, and transfers that are carried out."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from earl.dispatch.columns import columns
from earl.dispatch.dock.dock import Dock, DockFull, NothingReady, sweep
from earl.dispatch.dock.handout import Consumer, Handout
from earl.dispatch.dock.ledger import Ledger
from earl.dispatch.dock.store import Store
from earl.dispatch.execute import execute
from earl.dispatch.volume import volume
from earl.errors import EarlError
from tests.dispatch.simulated import Board, content

NAMES = ("tokens", "reference", "rewards")
COLUMNS = columns(NAMES)
HOSTS = np.array([0, 0, 1, 1, 2, 2])
SCORE = Consumer("score", columns(["tokens"]), np.array([[[4]], [[5]]]))
UPDATE = Consumer("update", COLUMNS, np.arange(2, 6).reshape(2, 1, 2), in_order=True)
SECONDS = 30.0


def values(row: int, length: int, names=NAMES) -> dict[str, np.ndarray]:
    """What a row holds: every number tells where it belongs."""
    chosen = [column for column in COLUMNS if column.name in names]
    return {column.name: content(column, row, 0, length if column.axis == "token" else 1) for column in chosen}


def put(dock: Dock, store: Store, rows: np.ndarray, lengths: np.ndarray, names=NAMES) -> None:
    """Payload first, then the word that it is there."""
    for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        store.put(row, values(row, length, names))
    dock.ready(rows, lengths, store.process, names)


def carried(handout: Handout, stores: list[Store]) -> list[dict]:
    """What every process has after the transfer."""
    transfer, board = handout.transfer(HOSTS), Board(len(HOSTS))
    with ThreadPoolExecutor(len(HOSTS)) as pool:
        runs = [
            pool.submit(execute, transfer, process, stores[process].shards(handout), board.transport(process), True)
            for process in range(len(HOSTS))
        ]
        return [run.result() for run in runs]


def check(handout: Handout, shards: list[dict]) -> None:
    """Every rank of a part has every column of the part's rows, whole."""
    for part, processes in enumerate(handout.consumer.processes):
        own = np.flatnonzero(handout.parts == part)
        for process in processes.reshape(-1).tolist():
            for column in handout.consumer.columns:
                shard = shards[process][column.axis]
                assert shard.rows.tolist() == own.tolist()
                rows = zip(handout.rows[own].tolist(), handout.lengths[own].tolist(), strict=True)
                wanted = [values(row, length)[column.name] for row, length in rows]
                assert shard.columns[column.name].tobytes() == b"".join(array.tobytes() for array in wanted)


def started(*runs) -> list:
    """Threads, whose faults are told when they are joined."""
    pool = ThreadPoolExecutor(len(runs))
    futures = [pool.submit(*run) for run in runs]
    pool.shutdown(wait=False)
    return futures


def test_rows_of_many_producers_reach_all_consumers_once_while_others_are_made() -> None:
    # 2 rollout processes x 12 groups of 4, room for 5 groups. Processes 4 and 5 score; 2 to 5 update, dp 2 x tp 2.
    dock = Dock(Ledger(COLUMNS, [SCORE, UPDATE], capacity=20))
    stores = [Store(process, COLUMNS) for process in range(len(HOSTS))]
    opened: list[int] = []
    read: dict[str, list[int]] = {"score": [], "update": []}
    most = []

    def produce(process: int) -> None:
        random = np.random.default_rng(process)
        for _ in range(12):
            rows = dock.open(4, SECONDS)
            opened.extend(rows.tolist())
            sweep(stores[process], dock)
            for own in (rows[:1], rows[1:]):  # a group's rows end one after another
                put(dock, stores[process], own, random.integers(1, 40, len(own)), ("tokens", "rewards"))
            most.append(len(stores[process].numbers))

    def score() -> None:
        while (handout := dock.take("score", 2, SECONDS)) is not None:
            shards = carried(handout, stores)
            for part, process in enumerate((4, 5)):
                own = np.flatnonzero(handout.parts == part)
                assert shards[process]["token"].rows.tolist() == own.tolist()
                put(dock, stores[process], handout.rows[own], handout.lengths[own], ("reference",))
                sweep(stores[process], dock)
            dock.done(handout)
            read["score"] += handout.rows.tolist()

    def update() -> None:
        while (handout := dock.take("update", 3, SECONDS)) is not None:
            check(handout, carried(handout, stores))
            dock.done(handout)
            read["update"] += handout.rows.tolist()

    producers = started((produce, 0), (produce, 1))
    consumers = started((score,), (update,))
    for run in producers:
        run.result(60)
    dock.close()
    for run in consumers:
        run.result(60)
    assert sorted(opened) == list(range(96))
    assert sorted(read["score"]) == list(range(96))
    assert read["update"] == list(range(96)), "it reads in order"
    assert max(most) <= 20
    for store in stores:
        sweep(store, dock)
        assert store.nbytes == 0


def test_a_full_dock_holds_producers_back_until_a_consumer_is_done() -> None:
    dock, store = Dock(Ledger(COLUMNS, [UPDATE], capacity=4)), Store(0, COLUMNS)
    put(dock, store, dock.open(4, SECONDS), np.full(4, 3))
    with pytest.raises(DockFull, match=r"waited 0.01 s for room for 2 rows: 0 of 4 are free"):
        dock.open(2, 0.01)
    handout = dock.take("update", 1, SECONDS)
    with pytest.raises(DockFull):
        dock.open(2, 0.01)
    (waiting,) = started((dock.open, 2, SECONDS))
    assert not waiting.done()
    dock.done(handout)
    assert waiting.result(SECONDS).tolist() == [4, 5]


def test_a_consumer_waits_for_a_column_and_no_longer_than_it_said() -> None:
    dock, store = Dock(Ledger(COLUMNS, [UPDATE], capacity=8)), Store(0, COLUMNS)
    rows = dock.open(2, SECONDS)
    put(dock, store, rows, np.array([3, 4]), ("tokens", "rewards"))
    with pytest.raises(NothingReady, match=r"'update' waited 0.01 s for 1 whole groups: 0 are ready, 1 lack"):
        dock.take("update", 1, 0.01)
    (waiting,) = started((dock.take, "update", 1, SECONDS))
    put(dock, store, rows, np.array([3, 4]), ("reference",))
    assert waiting.result(SECONDS).rows.tolist() == rows.tolist()
    assert isinstance(NothingReady(), EarlError)
    assert isinstance(DockFull(), EarlError)


def test_threads_of_one_consumer_share_its_groups_and_all_end() -> None:
    dock, store = Dock(Ledger(COLUMNS, [UPDATE], capacity=40)), Store(0, COLUMNS)
    seen: list[int] = []
    lock = threading.Lock()

    def consume() -> None:
        while (handout := dock.take("update", 1, SECONDS)) is not None:
            with lock:
                seen.extend(handout.groups.tolist())
            dock.done(handout)

    consumers = started(*[(consume,)] * 4)
    for _ in range(50):
        rows = dock.open(3, SECONDS)
        put(dock, store, rows, np.full(3, 2))
    dock.close()
    for run in consumers:
        run.result(SECONDS)
    assert sorted(seen) == list(range(0, 150, 3))


def test_those_who_wait_are_told_that_the_dock_is_closed() -> None:
    dock = Dock(Ledger(COLUMNS, [UPDATE], capacity=2))
    dock.open(2, SECONDS)
    (waiting,) = started((dock.open, 2, SECONDS))
    dock.close()
    with pytest.raises(EarlError, match="the dock is closed"):
        waiting.result(SECONDS)
    (last,) = started((dock.take, "update", 1, SECONDS))
    dock.give_up(0)
    assert last.result(SECONDS) is None


def test_rows_of_a_lost_process_are_made_again_and_then_transferred() -> None:
    # Process 1 is lost while the update has taken rows 2 and 3, which lay there; process 0 makes them again.
    dock, stores = Dock(Ledger(COLUMNS, [UPDATE], capacity=8)), [Store(process, COLUMNS) for process in range(6)]
    put(dock, stores[0], dock.open(2, SECONDS), np.array([3, 4]))
    put(dock, stores[1], dock.open(2, SECONDS), np.array([5, 6]))
    taken = dock.take("update", 2, SECONDS)
    assert dock.lost(1).tolist() == [2]
    dock.back(taken)
    with pytest.raises(NothingReady, match="1 are ready, 1 lack rows or columns"):
        dock.take("update", 2, 0.01)
    put(dock, stores[0], np.array([2, 3]), np.array([7, 8]))
    again = dock.take("update", 2, SECONDS)
    assert again.lengths.tolist() == [3, 4, 7, 8]
    check(again, carried(again, stores))


def test_what_is_transferred_is_at_the_lower_bound() -> None:
    dock, stores = Dock(Ledger(COLUMNS, [UPDATE], capacity=64)), [Store(process, COLUMNS) for process in range(6)]
    for process in (0, 2, 4, 1):
        put(dock, stores[process], dock.open(4, SECONDS), np.array([10, 20, 30, 40]))
    moved = volume(dock.take("update", 4, SECONDS).transfer(HOSTS))
    assert moved.received.tolist() == moved.least.tolist()
    assert moved.across > 0
