"""Random transfers, and messages between shards of this very process."""

from dataclasses import dataclass, field
from threading import Barrier, Lock, Thread

import numpy as np
from hypothesis import strategies as st

from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.rows import COLUMNS, Shard, columns, empty_shard, spread
from earl.dispatch.transports.base import execute
from earl.parallel.layout import Layout


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
    """A plan: ragged rows, any columns, processes on any hosts."""
    lengths = draw(st.lists(st.integers(0, 9), max_size=7))
    processes = draw(st.integers(1, 12))
    hosts = draw(st.lists(st.integers(0, 4), min_size=processes, max_size=processes))
    names = draw(st.lists(st.sampled_from(["tokens", "mask", "logprobs"]), unique=True, min_size=1))
    source, target = (draw(spreads(len(lengths), processes)) for _ in range(2))
    return plan(np.array(lengths, np.int64), columns(names), source, target, np.array(hosts))


def content(name: str, row: int, start: int, stop: int) -> np.ndarray:
    """What a column holds of a row: every number tells where it belongs."""
    seed = np.random.default_rng([sum(name.encode()), row])
    return seed.integers(0, 1 << 20, stop).astype(COLUMNS[name])[start:stop]


def filled(transfer: TransferPlan, where, process: int):
    """A shard with the content of its rows."""
    shard = empty_shard(where, process, transfer.lengths, transfer.columns)
    for number, row in enumerate(shard.rows.tolist()):
        begin, end = shard.offsets[number : number + 2]
        start = int(shard.starts[number])
        for name in transfer.columns:
            shard.columns[name][begin:end] = content(name, row, start, start + int(end - begin))
    return shard


@dataclass
class Board:
    """Where threads leave messages for each other."""

    size: int
    sent: dict = field(default_factory=dict)
    log: list = field(default_factory=list)

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


def carried_out(transfer, checksums=False, way=execute):
    """What every process ends with, and the messages that were sent."""
    board = Board(len(transfer.hosts))
    results: dict[int, Shard] = {}

    def run(process: int) -> None:
        held = filled(transfer, transfer.source, process)
        results[process] = way(transfer, process, held, board.transport(process), checksums)

    threads = [Thread(target=run, args=(process,)) for process in range(board.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, board.log
