"""In which order messages go: every byte once, all links busy, the same rounds on all processes."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from earl.benchmarks.dispatch import LOGPROBS, TransferCase
from earl.dispatch.transports.schedule import rounds, steps


@st.composite
def sizes(draw):
    """Bytes between at most seven processes, some of them none."""
    count = draw(st.integers(1, 7))
    size = st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 100_000))
    return np.array([[draw(size) for _ in range(count)] for _ in range(count)])


def carried(made, count):
    """The bytes of each pair's pieces, in order."""
    came = {(host, other): [] for host in range(count) for other in range(count)}
    for turn in made:
        assert sorted(turn.to.tolist()) == [*range(count)], "no two send to the same one"
        for host, (to, begin, end) in enumerate(zip(turn.to, turn.begin, turn.end, strict=True)):
            came[host, int(to)] += [(int(begin), int(end))] if end > begin else []
    return came


def longest(made):
    """Bytes that go after one another when every round waits for its longest piece."""
    return sum(int((turn.end - turn.begin).max()) for turn in made)


@given(sizes())
def test_pieces_of_a_message_follow_each_other_to_its_end(load):
    came = carried(rounds(load), len(load))
    for (host, other), pieces in came.items():
        ends = [0, *(end for _, end in pieces)]
        assert [begin for begin, _ in pieces] == ends[:-1]
        assert ends[-1] == (load[host, other] if host != other else 0)


def test_equal_messages_are_not_cut():
    made = rounds(np.full((16, 16), 1000))
    assert len(made) == 15 and longest(made) == 15_000


def test_what_goes_through_one_host_is_not_cut():
    for load in (np.outer(np.arange(8) > 0, np.arange(8) == 0), np.outer(np.arange(8) == 0, np.arange(8) > 0)):
        made = rounds(load * 3000)
        assert len(made) == 7 and longest(made) == 21_000


def test_ragged_messages_take_hardly_longer_than_the_busiest_link():
    load = TransferCase("ragged", LOGPROBS, 8192, 144, 1, ragged=True).plan(range(16)).sizes[0]
    busiest = max(load.sum(axis=0).max(), load.sum(axis=1).max())
    here = np.arange(16)
    in_turn = sum(int(load[here, (here + shift) % 16].max()) for shift in range(1, 16))
    assert in_turn > 1.3 * busiest, "whole messages: to the next host, then to the one after that"
    assert longest(rounds(load)) < 1.1 * busiest and len(rounds(load)) < 40


def test_hosts_of_a_large_cluster_take_turns():
    load = np.random.default_rng(0).integers(0, 100, (200, 200))
    begin = time.process_time()
    made = rounds(load)
    print(f"{time.process_time() - begin:.2f} s")
    assert len(made) == 199
    assert all(pieces in ([], [(0, load[pair])]) for pair, pieces in carried(made, 200).items())


@given(sizes(), st.data())
def test_processes_of_a_host_share_its_pieces(size, data):
    hosts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(size), max_size=len(size))))
    every = [[*steps(hosts, process, size)] for process in range(len(size))]
    sent = {(me, other): [] for me in range(len(size)) for other in range(len(size))}
    got = {pair: [] for pair in sent}
    for process, own in enumerate(every):
        for step in own:
            if step.to:
                sent[process, step.to.other].append((step.to.begin, step.to.end))
            if step.source:
                got[step.source.other, process].append((step.source.begin, step.source.end))
    assert sent == got, "both sides cut alike"
    for (process, other), parts in sent.items():
        ends = [0, *(end for _, end in parts)]
        assert [begin for begin, _ in parts] == ends[:-1]
        assert ends[-1] == (size[process, other] if hosts[process] != hosts[other] else 0)
