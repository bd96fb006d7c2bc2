"""Random transfers, and messages between shards of this very process."""

from dataclasses import dataclass, field
from threading import Barrier, Lock, Thread

import numpy as np
from hypothesis import strategies as st

from earl.dispatch.execute import execute
from earl.dispatch.plan import Leg, plan
from earl.dispatch.rows import Column, columns, empty, spread
from earl.parallel.layout import Layout

TOP = (Column("topk_tokens", "int32", 3), Column("topk_logprobs", "float32", 3))
LEGS = (("tokens", "mask", "logprobs"), ("reference",), ("rewards",))


@st.composite
def spreads(draw, rows: int, processes: int):
    """Rows over a layout of at most so many processes, in any order."""
    sizes = st.sampled_from([1, 2, 3])
    layout = draw(st.builds(Layout, sizes, sizes, sizes).filter(lambda layout: layout.size <= processes))
    order = draw(st.permutations(range(processes)))[: layout.size]
    parts = draw(st.lists(st.integers(0, layout.dp - 1), min_size=rows, max_size=rows))
    return spread(layout, order, parts)


@st.composite
def transfers(draw):
    """A plan: ragged rows, several legs with producers of their own, processes on any hosts."""
    lengths = draw(st.lists(st.integers(0, 9), max_size=7))
    processes = draw(st.integers(1, 12))
    hosts = draw(st.lists(st.integers(0, 4), min_size=processes, max_size=processes))
    chosen = draw(st.lists(st.sampled_from(LEGS), unique=True, min_size=1))
    sources = [draw(spreads(len(lengths), processes)) for _ in chosen]
    legs = [Leg(columns(names), source) for names, source in zip(chosen, sources, strict=True)]
    if draw(st.booleans()):
        legs.append(Leg(TOP, draw(spreads(len(lengths), processes))))
    target = draw(spreads(len(lengths), processes))
    return plan(np.array(lengths, np.int64), legs, target, np.array(hosts))


def content(column: Column, row: int, start: int, stop: int) -> np.ndarray:
    """What a column holds of a row: every number tells where it belongs."""
    seed = np.random.default_rng([sum(column.name.encode()), row])
    drawn = seed.integers(0, 1 << 20, (stop, column.width)).astype(column.kind)[start:stop]
    return drawn if column.width > 1 else drawn[:, 0]


def filled(leg: Leg, where, process: int, lengths: np.ndarray):
    """A shard with the content of its rows."""
    shard = empty(where, process, lengths, leg.axis, leg.columns)
    for number, row in enumerate(shard.rows.tolist()):
        begin, end = shard.offsets[number : number + 2]
        start = int(shard.starts[number])
        for column in leg.columns:
            shard.columns[column.name][begin:end] = content(column, row, start, start + int(end - begin))
    return shard


@dataclass
class Board:
    """Where threads leave messages for each other."""

    size: int
    sent: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    said: dict = field(default_factory=dict)

    def __post_init__(self):
        self.barrier, self.lock = Barrier(self.size), Lock()

    def transport(self, process: int):
        return Post(self, process)


@dataclass
class Post:
    """A transport between threads."""

    board: Board
    process: int

    def exchange(self, outgoing, sizes):
        expected = sizes[:, self.process]
        with self.board.lock:
            for to, message in outgoing.items():
                self.board.sent[self.process, to] = message.copy()
                self.board.log.append((self.process, to, len(message)))
        self.board.barrier.wait(30)
        came = {source: self.board.sent.pop((source, self.process)) for source in np.flatnonzero(expected).tolist()}
        self.board.barrier.wait(30)
        assert all(len(message) == expected[source] for source, message in came.items())
        assert {to: len(message) for to, message in outgoing.items()} == {
            to: sizes[self.process, to] for to in np.flatnonzero(sizes[self.process]).tolist()
        }
        return came

    def most(self, number):
        self.board.said[self.process] = number
        self.board.barrier.wait(30)
        largest = max(self.board.said.values())
        self.board.barrier.wait(30)
        return largest


def carried_out(transfer, checksums=False, way=execute):
    """What every process ends with, and the messages that were sent."""
    board = Board(len(transfer.hosts))
    results: dict[int, dict] = {}

    def run(process: int) -> None:
        held = [filled(leg, leg.source, process, transfer.lengths) for leg in transfer.legs]
        results[process] = way(transfer, process, held, board.transport(process), checksums)

    threads = [Thread(target=run, args=(process,)) for process in range(board.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, board.log
